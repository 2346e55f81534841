// What the live view's modules hand one another. Only the type checker reads this file.

/** Lane data of one run, as joinlab/picture/lane_data.py writes it: texts are numbers into `LaneData.texts`. */
interface RawRun {
  ranks: number; lanes: number[]; verdict: RawVerdict; title: number; measured: number; modelled: boolean; ends: number[]; good: boolean[]; sign: string; ended: number[];
  sources: { name: number; first_line: number; text: number | null }[];
  lines: [source: number, line: number][][]; // the lines that led to a call, innermost first; boxes and `ended` name them by number
  zero: number;
  boxes: RawBox[];
  layouts: Record<string, RawLayout>;
  scene: RawScene;
  columns?: RawColumns; // of a large run, which has its folded rows alone as a layout
}

/** Every call of a large run, as joinlab/picture/columns.py writes it; stops, begin and end in ns. */
interface RawColumns {
  planes: [name: string, size: number, n: number][]; unit: number; counts: number[]; spans: number[];
  codes: { kind: number; label: number; lines: number; facts: number; like: number }[];
  names: number[]; missed: number[]; stops: number[]; end: number; rows: number;
  read?: Record<string, Uint32Array>;
  common?: { rank: Int32Array; slot: Int32Array; begin: Float64Array; end: Float64Array } & Record<"code" | "flags" | "waited" | "waits", Uint32Array>;
  /** What was told of single calls, by slot and rank. */
  told?: Map<string, Fact[]>;
  /** Slots that Python was asked for, or need not be. */
  asked?: Set<number>;
}

/** Boxes by index; `inOrder`: the slots' numbers are their rows. */
interface Columns {
  lane: Int32Array; slot: Int32Array; begin: Float64Array; end: Float64Array; kind: Uint8Array; flags: Uint8Array;
  code?: Uint32Array; inOrder?: boolean;
}

/** Calls that are drawn as one. */
interface Block {
  owner: number; rank: number; part: number; wrong: boolean; from: number; to: number; low: number; high: number;
  cell: number; counts: Uint32Array; paths: Map<number, string>;
}

/** Slots: where the ranks part, and all that did not go as meant. */
interface RawVerdict {
  first: number | null; wrong: number[];
}

interface RawBox {
  rank: number; kind: number; label: number; short: number; slot: number | null; lines: number; facts: number;
  open?: boolean; bad?: boolean; failed?: boolean;
}

interface RawLayout {
  unit: number; begin: number; end: number;
  box: number[]; from: number[]; to: number[]; track: number[]; tracks: number[];
  bands: { slot: number; a: number; b: number; met: boolean; bad: boolean; text: number }[];
  notes: { rank: number | null; begin: number; end: number; line: number; whole: number; bad: boolean; slot: number | null }[];
  groups: { rank: number | null; begin: number; end: number; label: number }[];
  stops: number[];
}

/** One look of a box: joinlab/picture/theme.py has the colours. */
interface Kind { name: string; color: string; pattern: string; lane: "stream" | "span" | "wait"; fold: boolean }

interface Looks {
  kinds: Kind[];
  bands: { bad: boolean; met: boolean; name: string }[];
  lanes: Record<"stream" | "span" | "wait" | "host", [number, number]>;
  first: string[];
  made: string;
}

type Fact = [name: string, said: string];

interface LaneData { looks: Looks; texts: string[]; facts: [number, number][]; told: number[][]; runs: RawRun[]; ahead?: Record<string, number> }

/** A call, or what a host did: a box of the picture, placed along the axis. */
interface Box {
  i: number; begin: number; end: number; track: number; tracks: number; rank: number; kind: number; label: string; short: string;
  open: boolean; bad: boolean; failed: boolean; slot: number | null; lines: number; host: boolean; fold: boolean;
  told: number; facts?: Fact[]; // a number into LaneData.told, or the facts themselves
}

interface Band { slot: number; a: Box; b: Box; met: boolean; bad: boolean; text: string }
interface Note { rank: number | null; begin: number; end: number; text: string; whole: string; bad: boolean; slot: number | null; lines?: string[] }
interface Group { rank: number | null; begin: number; end: number; label: string }

interface Layout {
  axis: string; boxes: import("./boxes.js").Boxes; list: Box[]; notes: Note[];
  kindsOfBands: Set<string>; bandsOf(slot: number): Band[];
  groups: Group[]; stops: number[]; begin: number; end: number; unit: number;
}

/** A row's edges in px. */
interface Edge { begin: number; top: number; bottom?: number }

/** px to leave free before what begins at a place along the axis. */
type Gap = [begin: number, px: number];

interface Mark { slot?: number; text?: string }

/** What the view follows: a widget's model, or a Store. */
interface Model {
  get(name: string): any;
  set(name: string, value: any): void;
  on(event: string, listener: (...args: any[]) => void): void;
  off(event: string, listener: (...args: any[]) => void): void;
  save_changes(): void;
  send?(message: unknown): void;
  widget_manager?: { get_model(id: string): Promise<WholeModel> };
}

/** A widget's model as the notebook has it. */
interface WholeModel { get(name: string): any; set_state?(state: object): void }

/** A call's column on the first screen, placed along time; joinlab/picture/scene.py says what it holds. */
interface RawColumn {
  slot: number; n: string; boxes: (number | null)[]; flag: "met" | "wrong" | "apart" | "open"; stack: string; extra: number | null;
  missing: [lane: number, call: string] | null;
}
interface Placed extends Omit<RawColumn, "boxes"> { i: number; boxes: (Box | null)[]; focus: boolean; size: "stack" | "slim" | "mid" | "big" | "ghost"; t: number; w: number }

/** Words; the kind of call whose colour they have, or -1; and a tone. */
type ScenePiece = [text: string, kind: number, tone: string];

interface RawScene {
  head: ScenePiece[]; columns: RawColumn[]; focus: number | null; meant: [number, number, number, number][];
  readings: [column: number, to: number, of: number, value: string, sent: string, taken: string][]; odd: number | null;
  ends: [sign: string, word: string, tone: string, more: string][]; file: string;
  code: [sign: string, number: number | null, text: string, here: ScenePiece[]][]; word: string; tried: string;
  story: [kind: string, pieces: ScenePiece[]][];
  ranks: number[][]; world: number; inputs: (number | null)[];
}

interface Rect { x: number; y: number; w: number; h: number; cx: number; cy: number }

/** A point on the way of the wrong value, and the position at which it is reached. */
interface Stop { at: number; p: [number, number]; value: string; jump?: boolean }

declare var joinlabViews: number | undefined;
declare var joinlabRanks: number | undefined;
