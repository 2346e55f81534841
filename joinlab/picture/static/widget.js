// joinlab.View in a notebook, through anywidget.

import { First, widget } from "./first.js";

export default widget(First);
