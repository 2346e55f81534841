// What the modules hand one another. Only the type checker reads this file.

// One run, as joinlab/picture/lane_data.py writes it.
interface RawRun {
  title: string;
  measured: string;
  // Whether the run with its fix is known, or Python can look for it; and the number of that run.
  mends: boolean;
  mended?: number;
  scene: RawScene;
  // From here to `told`: only once a call is asked for.
  zero: number;
  // Of every lane of `columns`; the first screen's may be fewer.
  names: string[];
  ends: string[];
  // Of calls that did not complete.
  fates: string[];
  // By lane of the first screen, the one of `columns` that it shows.
  lanes: number[];
  // Whether calls begin one after the other, in a queue of the GPU.
  queues: boolean;
  sources: { name: string; first_line: number; text: string | null }[];
  // The lines that led to a call, innermost first.
  lines: [source: number, line: number][][];
  columns: RawColumns;
  // Of the calls that are told one by one.
  told: [slot: number, lane: number, told: number][];
  calls?: ReturnType<typeof import("./columns.js").everyCall>;
  // The number of the run that is drawn below it on the same axis, and what differs.
  beside?: number;
  apart?: string;
}

// Every call, as joinlab/picture/columns.py writes it; stops and end in ns.
interface RawColumns {
  planes: [name: string, size: number, n: number][];
  unit: number;
  counts: number[];
  spans: number[];
  codes: { kind: number; label: string; lines: number; facts: number }[];
  names: [name: string, lines: number][];
  stops: number[];
  // When each lane's program was over, ns; `end` where it never is.
  over: number[];
  end: number;
  rows: number;
  read?: Record<string, Uint32Array>;
}

interface Looks {
  kinds: string[];
  taken: string;
  mixed: string;
  keys: string;
  // px of columns and of the gaps between, on a "row", a "column" or a "phone".
  sizes: Record<string, Record<string, number>>;
  gives: [size: string, number][];
}

interface LaneData {
  looks: Looks;
  facts: [name: string, said: string][];
  told: [first: number[], rest: number[], stack: number, made: number][];
  runs: RawRun[];
  // Bytes that came.
  size: number;
  positions?: Positions;
  // The numbers of a page's runs, from top to bottom.
  shown?: number[];
  ahead?: Record<string, number>;
  gallery?: any;
}

// A call, or a stack of them, in a lane.
interface Box {
  kind: number;
  label: string;
  open?: true;
  failed?: true;
  stack?: string;
  below?: string;
  // Of the program, from which the call comes, or the last of a stack, if it is known.
  line?: number;
}

// What the view follows: a widget's model, or a Store.
type Model = import("./store.js").Store & { send?(message) };

// A column of the first screen, placed along time; joinlab/picture/screen.py says what it holds.
interface RawColumn {
  slot: number;
  until: number;
  // "28", of a stack "0-24".
  numbers: string;
  boxes: (Box | null)[];
  title: string;
  // What went wrong, read aloud.
  how: string;
  size: "stack" | "slim" | "mid" | "big" | "ghost";
  flag: "met" | "wrong" | "apart" | "open";
  stack: string;
  remark: string;
  clashes: [number, number][];
  absent: number[];
  lacks: string;
  extra: number | null;
  missing: [lane: number, call: string] | null;
  far: boolean;
}
interface Placed extends RawColumn {
  i: number;
  focus: boolean;
  t: number;
  w: number;
  // px, of what it shows.
  middle: number;
}

// Words; the kind of call whose colour they have, if one; and a tone.
type ScenePiece = [text: string, kind: number | null, tone: string];

interface RawScene {
  names: string[];
  short: string[];
  before: number;
  behind: number;
  headline: ScenePiece[];
  columns: RawColumn[];
  focus: number | null;
  meant: [number, number, number, number][];
  readings: [column: number, to: number, of: number, value: string, sent: string][];
  outlier: number | null;
  // How all ended, as the colours of the ends say it.
  tone: "" | "good" | "warn" | "bad";
  ends: [sign: string, word: string, tone: string, more: string][];
  file: string;
  code: [sign: string, number: number | null, text: string, here: ScenePiece[]][];
  provenance: string;
  tried: ScenePiece[];
  story: [kind: string, pieces: ScenePiece[]][];
  ranks: number[][];
  world: number;
  inputs: string[];
  under: string[];
}

// The run of each program, setting and inputs, and where the controls stand at first.
interface Positions {
  runs: Record<string, Record<string, Record<string, number>>>;
  map: any;
  loop: [boolean, string][];
  start: [program: string, setting: string, inputs: number[]];
}

declare var joinlabStyles: string;
declare var joinlab: any;
