// Reads a pasted log like importers/text.py and describes it like story/forms/pasted.py. `tables` has their shared
// patterns, sentences and words for calls. tests/test_paste.py checks both against one table of excerpts.

const FIRST = " (first)";

/** The story of a text: {headline, more: [sentence, ...]}; the headline is "" if no line is about a rank. */
function tell(text, tables) {
  const told = read(text, tables);
  const missing = range(told.size).filter((rank) => !told.ranks.has(rank));
  if (!told.ranks.size) return { headline: "", more: [] };
  const say = sayer(tables.sentences);
  const headline = failed(told, tables, say) || parted(told, tables, say) || still(told, tables, say)
    || victims(told, tables, say) || stood(told, tables, say) || alike(told, say);
  const notes = told.notes.size ? ` (${[...told.notes].sort().join("; ")})` : "";
  const of = `text of ${told.sources.join(", ")}${notes}`;
  const reach = say("reach", { of }) + (missing.length ? say("missing", { who: who(missing) }) : "");
  const more = [...enqueued(told, say), ...stands(told, tables, say), reach];
  return { headline: sentence(headline), more: more.map(sentence) };
}

// ---- reading the lines

function read(text, tables) {
  const all = (name, within) => [...within.matchAll(new RegExp(tables.patterns[name], "gm"))]
    .map((one) => ({ ...one.groups, at: one.index, all: one[0] }));
  const op = (name) => tables.ops[name.toLowerCase().replace(new RegExp(tables.noise, "g"), "")];
  const told = { calls: new Map(), progress: {}, sizes: {}, names: {}, raised: {}, ended: {}, stands: {},
    late: new Set(), named: new Set(), ranks: new Set(), sources: [], notes: new Set(), size: 0 };
  const call = (group, rank, number, name, shape, error) => {
    const key = [group, rank, number].join();
    if (op(name) && rank < tables.most_ranks && !told.calls.has(key)) {
      told.calls.set(key, { group, rank, number, op: op(name), shape, error, done: false });
    }
  };
  const gotTo = (group, rank, number) => {
    const of = (told.progress[group] ??= {});
    if (!(of[rank]?.[0] > number)) of[rank] = [number, 0];
  };
  text = text.replace(new RegExp(tables.patterns.colour, "g"), "").replace(/\r\n?/g, "\n");
  const jobRank = (one) => all("prefix", text.slice(text.lastIndexOf("\n", one.at - 1) + 1, one.at))[0]?.rank;
  const readers = {
    "NCCL's watchdog": () => {
      const groupOf = {}, lines = all("progress", text), timeouts = all("timeout", text);
      for (const one of lines) {
        const rank = Number(jobRank(one) ?? one.rank);
        const group = one.guid || (Number(one.rank) === rank ? one.id : `${one.id} of rank ${rank}`);
        if (one.words) told.names[group] = one.words;
        if (Number(one.enqueued) >= Number(one.completed)) {
          (told.progress[group] ??= {})[rank] = [Number(one.enqueued), Number(one.completed)];
        }
        groupOf[[rank, one.work ?? Number(one.completed) + 1]] = group;
      }
      for (const one of timeouts) {
        const rank = Number(jobRank(one) ?? one.rank), group = groupOf[[rank, one.number]] ?? "0";
        const own = group !== "0" && !jobRank(one);
        if (own) told.notes.add(`ranks count within group ${told.names[group] ?? group}`);
        call(group, rank, Number(one.number), one.op, one.count && [Number(one.count)]);
        told.ended[rank] = "NCCL's watchdog gave up";
      }
      const still = all("stuck", text);
      for (const one of still) told.ended[jobRank(one) ?? one.rank] ??= `${tables.stuck} ${one.seconds} s`;
      return lines.length + timeouts.length + still.length;
    },
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": () => all("print", text).map((one) => {
      const number = one.number ? Number(one.number) + 1 : 0;
      call("0", Number(one.rank), number, one.op, one.shape?.split(",").map(Number), tables.not_met);
    }).length,
    "NCCL's log": () => {
      const ids = {}, known = {}, comms = {}, rows = {}, lines = all("coll", text);
      const process = (one) => `${one.host}:${one.pid}`;
      for (const one of [...all("comm", text), ...lines]) {
        const larger = one.rank && !(known[process(one)]?.size > Number(one.size));
        if (larger) known[process(one)] = { size: Number(one.size), rank: Number(one.rank) };
        if (one.id) ids[process(one) + one.comm] = one.id;
      }
      const places = [...new Map(lines.map((one) => [process(one), one])).values()]
        .sort((a, b) => compare(a.host, b.host) || a.device - b.device || compare(a.pid, b.pid));
      const several = new Set(places.map((one) => one.host)).size > 1;
      if (places.some((one) => !known[process(one)])) {
        const order = several ? "GPUs in the order of their hosts' names" : "GPUs of one host";
        told.notes.add(`ranks are assumed to be the ${order}`);
      }
      for (const one of lines) {
        const mine = ((comms[process(one)] ??= {})[one.size] ??= []);
        if (!mine.includes(one.comm)) mine.push(one.comm);
        const id = ids[process(one) + one.comm], nth = mine.indexOf(one.comm);
        const group = `${one.size} ranks${id ? ` of ${id}` : nth ? `, ${nth}` : ""}`;
        const at = places.findIndex((other) => process(other) === process(one));
        const rank = known[process(one)]?.rank ?? (several ? at : Number(one.device));
        told.ranks.add(rank);
        if (["send", "recv"].includes(op(one.op))) continue;
        told.sizes[group] = Number(one.size);
        (rows[group] ??= []).push([rank, one]);
      }
      for (const [group, those] of Object.entries(rows)) {
        if (new Set(those.map(([rank]) => rank)).size > told.sizes[group]) {
          told.notes.add(`communicators of ${group} are left out: no line says which ranks share one`);
          delete told.sizes[group];
        } else {
          for (const [rank, one] of those) {
            call(group, rank, parseInt(one.number, 16) + 1, one.op, [Number(one.count)]);
            gotTo(group, rank, parseInt(one.number, 16) + 1);
          }
        }
      }
      return lines.length;
    },
    ncclras: () => all("ras", text).map((one) => {
      const size = Math.max(0, ...all("ras_size", text).map((line) => Number(line.size)));
      const sides = [];
      for (const line of one.lines.split("\n")) {
        const count = all("ras_count", line)[0], rank = all("ras_rank", line)[0];
        if (count) sides.push([Number(count.number), []]);
        else if (rank && sides.length) sides.at(-1)[1].push(Number(rank.rank));
      }
      const named = sides.flatMap(([, ranks]) => ranks);
      const alone = sides.filter(([, ranks]) => !ranks.length).length === 1;
      told.sizes[`${size} ranks`] = size;
      for (const [number, ranks] of sides) {
        const others = alone ? range(size).filter((rank) => !named.includes(rank)) : [];
        for (const rank of ranks.length ? ranks : others) {
          call(`${size} ranks`, rank, number, one.op ?? "");
          gotTo(`${size} ranks`, rank, number);
        }
      }
    }).length,
    monitored_barrier: () => [...all("barrier", text), ...all("reached", text)].map((one) => {
      call("0", Number(one.rank), 0, "BARRIER", undefined, one.all);
      for (const rank of one.late?.match(/\d+/g) ?? []) told.late.add(Number(rank));
    }).length,
    "torchrun's report": () => {
      const cause = text.lastIndexOf("Root Cause");
      return all("failed", text).map((one) => {
        const first = cause >= 0 && cause < one.at;
        if (first || !(one.rank in told.ended)) {
          const by = one.signal ?? one.by ?? `exit code ${one.code}`;
          told.ended[one.rank] = by + (first ? FIRST : " (torchrun)");
        }
      }).length;
    },
    "tracebacks and stacks": () => {
      const lines = {};
      let process;
      for (const line of text.split("\n")) {
        const one = all("prefix", line)[0], dumped = all("process", line)[0];
        if (dumped) process = dumped.local;
        if (one?.rank) told.named.add(Number(one.rank));
        const rank = one?.rank || one?.local || one?.task || process;
        if (rank) (lines[rank] ??= []).push(one ? line.slice(one.all.length) : line);
        const within = (one?.local && line.includes("Traceback")) || (dumped && process);
        if (within) told.notes.add("ranks count within a host");
      }
      let some = false;
      for (const [rank, those] of Object.entries(lines)) {
        const mine = `${those.join("\n")}\n`;
        for (const one of all("raised", mine)) {
          told.raised[rank] = one.text;
          told.stands[rank] = all("frame", one.frames).reverse();
          some = true;
        }
        const stack = mainThread(mine, all);
        if (stack.length) [told.stands[rank], some] = [stack, true];
      }
      return some;
    },
  };
  for (const [source, reader] of Object.entries(readers)) if (reader()) told.sources.push(source);
  finish(told, tables);
  return told;
}

/** The frames of the main thread, innermost first, as faulthandler and py-spy write it. */
function mainThread(text, all) {
  const heads = all("thread", text);
  let last = [];
  for (const [at, head] of heads.entries()) {
    const body = text.slice(head.at + head.all.length, heads[at + 1]?.at);
    const frames = all(head.all.includes("most recent call first") ? "frame" : "spy_frame", body);
    if (head.all.includes('"MainThread"') || frames.at(-1)?.function === "<module>") return frames;
    if (frames.length) last = frames;
  }
  return last;
}

/** Which ranks there are, how each ended, and which calls every rank of a group issued alike. */
function finish(told, tables) {
  const order = (a, b) => a.rank - b.rank || compare(a.group, b.group) || a.number - b.number;
  told.rows = [...told.calls.values()].sort(order);
  const enqueued = Object.values(told.progress).flatMap(Object.keys);
  const all = [...told.rows.map((row) => row.rank), ...enqueued, ...told.late, ...told.ranks,
    ...Object.keys(told.raised), ...Object.keys(told.ended), ...Object.keys(told.stands)];
  if (all.length) all.push(...told.named);
  told.ranks = new Set(all.map(Number).filter((rank) => rank < tables.most_ranks));
  told.size = Math.max(...[...told.ranks].map((rank) => rank + 1), ...Object.values(told.sizes), 0);
  told.ends = range(told.size).map((rank) => rank in told.raised
    ? told.raised[rank] + (told.ended[rank]?.endsWith(FIRST) ? FIRST : "") : told.ended[rank] ?? "");
  for (const row of told.rows) {
    const same = told.rows.filter((other) => other.group === row.group && other.number === row.number);
    const alike = same.every((other) => other.op === row.op && `${other.shape}` === `${row.shape}`);
    row.done = (alike && same.length === told.sizes[row.group])
      || (row.number > 0 && row.number <= (told.progress[row.group]?.[row.rank]?.[1] ?? 0));
  }
}

// ---- what they mean

function failed(told, tables, say) {
  const own = range(told.size).filter((rank) => (rank in told.raised || told.ends[rank].endsWith(FIRST))
    && !told.rows.some((row) => row.rank === rank && row.error) && !waited(told, tables, rank));
  const first = own.filter((rank) => told.ends[rank].endsWith(FIRST)).slice(0, 1);
  return errors(told, tables, say, first.length ? "failed" : "raised", first.length ? first : own);
}

const waited = (told, tables, rank) => tables.waited.some((words) => told.ends[rank].includes(words));
const still = (told, tables, say) =>
  errors(told, tables, say, "stuck", range(told.size).filter((rank) => told.ends[rank].includes(tables.stuck)));
const victims = (told, tables, say) =>
  errors(told, tables, say, "victims", range(told.size).filter((rank) => waited(told, tables, rank)));

function errors(told, tables, say, form, ranks) {
  return together(form, "others", say, ranks.map((rank) => {
    const frame = ownFrame(told.stands[rank] ?? [], tables), place = frame ? ` (${site(frame)})` : "";
    return [rank, told.ends[rank].replace(FIRST, "").replace(/\.$/, "") + place];
  }));
}

/** What ranks with a text each did, those of one text together; of more than two texts the rest in other words. */
function together(form, others, say, found, fewest = false) {
  const texts = {};
  for (const [rank, text] of found) (texts[text] ??= []).push(rank);
  const sides = Object.entries(texts);
  if (fewest) sides.sort(([, a], [, b]) => a.length - b.length || a[0] - b[0]);
  const rest = sides.slice(2).flatMap(([, those]) => those);
  return listing([...sides.slice(0, rest.length ? 2 : undefined)
    .map(([text, those]) => say(form, { who: who(those), text })), ...(rest.length ? [say(others, { who: who(rest) })] : [])]);
}

// ---- where main threads stood

const ownFrame = (frames, tables) => frames.find((frame) => !new RegExp(tables.library).test(frame.file));
const base = (frame) => frame.file.split("/").at(-1);
const site = (frame) => `${base(frame)}:${frame.line}`;

/** The place of each rank, by rank: "load (data.py:61, called poll of connection.py)". */
function places(told, tables) {
  return Object.entries(told.stands).flatMap(([rank, frames]) => {
    const own = ownFrame(frames, tables);
    const deep = own === frames[0] ? "" : `, called ${frames[0].function} of ${base(frames[0])}`;
    return own ? [[Number(rank), `${own.function} (${site(own)}${deep})`]] : [];
  });
}

const stood = (told, tables, say) =>
  told.rows.length ? "" : together("stood", "elsewhere", say, places(told, tables), true);

/** Where ranks stand that are in no call, while others are in one, or have raised. */
function stands(told, tables, say) {
  const inside = new Set(told.rows.filter((row) => !row.done).map((row) => row.rank));
  if (!inside.size && !Object.keys(told.raised).length) return [];
  return places(told, tables).filter(([rank]) => !inside.has(rank) && !(rank in told.raised)).slice(0, 4)
    .map(([rank, text]) => say(told.ends[rank].includes("SIG") ? "stood" : "stands", { who: who([rank]), text }));
}

function parted(told, tables, say) {
  const open = told.rows.filter((row) => !row.done);
  if (!open.length) return "";
  const refused = kinds(open.filter((row) => row.error === tables.not_met), tables, true);
  if (refused.length > 1) return each("differ", refused, tables, say);
  const counts = open.map((row) => open.filter((other) => other.group === row.group).length);
  const group = open[counts.indexOf(Math.max(...counts))].group, by = {};
  for (const row of open) if (row.group === group) (by[row.number] ??= []).push(row);
  for (const rows of Object.values(by)) {
    const those = kinds(rows, tables);
    if (those.length > 1) return each("differ", those, tables, say);
  }
  const exact = Object.entries(told.progress[group] ?? {}).map(([rank, [count]]) => [Number(rank), count]);
  if (group === "0") exact.push(...[...told.late].map((rank) => [rank, 0]));
  for (const [number, rows] of Object.entries(by)) {
    const here = rows.map((row) => row.rank);
    const behind = exact.filter(([rank, count]) => count < (Number(number) || 1) && !here.includes(rank));
    if (behind.length) {
      const call = called(rows[0], tables);
      return say("behind", { who: who(behind.map(([rank]) => rank)), call, here: who(here) });
    }
  }
  const first = {}, places = {};
  for (const rows of Object.values(by)) {
    for (const row of rows) {
      if ((first[row.rank] ??= row.number) === row.number) (places[row.number] ??= []).push(row);
    }
  }
  const untold = Object.keys(first).some((rank) => !told.ends[rank]) && !open.some((row) => row.error);
  const sides = Object.values(places);
  if (untold || sides.length > 1) return each(untold ? "last" : "apart", sides, tables, say);
  return say("waits", { who: who(sides[0].map((row) => row.rank)), call: called(sides[0][0], tables) });
}

function kinds(rows, tables, numbers = false) {
  const found = {};
  for (const row of rows) {
    const counted = tables.same_size.includes(row.op) && rows.every((one) => one.shape);
    const sized = counted || row.error === tables.not_met;
    (found[[row.op, sized ? row.shape : "", numbers ? row.number : ""].join("|")] ??= []).push(row);
  }
  return Object.values(found);
}

function each(form, sides, tables, say) {
  const same = form === "differ" && new Set(sides.map((rows) => rows[0].number)).size === 1;
  const found = sides.map((rows) =>
    say(form, { who: who(rows.map((row) => row.rank)), call: called(rows[0], tables, !same) }));
  const [{ number }] = sides[0];
  return listing(found) + (same && number ? `, as call ${commas(number)}` : "");
}

function called(row, tables, numbered = true) {
  const size = row.shape ? ` of ${row.shape.map((one) => commas(one)).join("×")} number` : "";
  const number = numbered && row.number ? ` ${commas(row.number)}` : "";
  return tables.words[row.op] + number + size + (size && `${row.shape}` !== "1" ? "s" : "");
}

function alike(told, say) {
  const number = new Set(told.rows.map((row) => [row.group, row.number].join())).size;
  return say(number ? "alike" : "silent", { who: who([...told.ranks]), number: commas(number) });
}

function enqueued(told, say) {
  const groups = [...new Set(told.rows.filter((row) => !row.done).map((row) => row.group))].sort(compare);
  return groups.map((group) => {
    const found = new Map();
    for (const [rank, [count]] of Object.entries(told.progress[group] ?? {})) {
      found.set(count, [...(found.get(count) ?? []), Number(rank)]);
    }
    return found.size < 2 ? "" : listing([...found].map(([count, ranks]) =>
      say("enqueued", { who: who(ranks), number: `${commas(count)} call${count === 1 ? "" : "s"}` })));
  }).filter(Boolean);
}

// ---- words

const range = (size) => [...Array(size).keys()];
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const commas = (number) => number.toLocaleString("en-US");
const sentence = (text) => text && `${text[0].toUpperCase()}${text.slice(1)}.`;
const sayer = (sentences) => (name, parts) => sentences[name].replace(/\{(\w+)\}/g, (_, part) => parts[part]);
const listing = (parts) => [parts.slice(0, -1).join(", "), ...parts.slice(-1)].filter(Boolean).join(" and ");

/** "ranks 0-2, 4" */
function who(ranks) {
  const runs = [];
  for (const rank of [...new Set(ranks)].sort((a, b) => a - b)) {
    if (runs.length && rank === runs.at(-1).at(-1) + 1) runs.at(-1).push(rank);
    else runs.push([rank]);
  }
  const texts = runs.map((run) => (run.length > 2 ? `${run[0]}-${run.at(-1)}` : run.join(", ")));
  return `rank${new Set(ranks).size > 1 ? "s" : ""} ${texts.join(", ")}`;
}
