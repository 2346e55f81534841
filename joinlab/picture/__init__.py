"""Lays a Timeline out as lanes and draws it: SVG, Plotly figure, HTML page, data of the live
view."""
