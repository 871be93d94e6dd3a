"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// ---- sections that have something to show

const filled = {
  samples: data.samples.length, attention: data.views.length,
};
for (const [id, there] of Object.entries(filled)) {
  if (!there) continue;
  byId(id).hidden = false;
  byId("nav").append(make("a", { href: `#${id}`, textContent: byId(id).querySelector("h2").textContent }));
}
byId("nothing").hidden = Object.values(filled).some(Boolean);

// ---- samples: a row for each line

function sample(number) {
  const it = data.samples[number], compared = it.reference.length || it.runs.length > 1;
  const columns = [["source", it.source.map((line) => [[line, false]]), "source"]];
  const marks = (lines, i) => (lines[i] || []).some(([, differs]) => differs);
  for (const run of it.runs) {
    columns.push([run.name, run.lines, "", `differs in ${run.lines.filter((_, i) => marks(run.lines, i)).length} of ${run.lines.length} lines`]);
    if (run.because.some((its) => its.length)) columns.push(["because", run.because.map((its) => [[its.join("\n"), false]]), "because"]);
  }
  if (it.reference.length) columns.push(["reference", it.reference.map((line) => [[line, false]]), "source"]);
  const head = make("tr", {}, make("td", { textContent: "line" }), ...columns.map(([name, , , note]) => make("th", { scope: "col" }, name, ...(note && compared ? [make("small", { textContent: note })] : []))));
  const body = make("tbody");
  it.source.forEach((_, i) => {
    const row = make("tr", { className: columns.some(([, lines]) => marks(lines, i)) ? "differs" : "" }, make("th", { textContent: i + 1, scope: "row" }));
    for (const [name, lines, className] of columns) {
      if (i && lines.length !== it.source.length) continue; // its lines do not match the source's: one cell for all
      const cell = make("td", { className, rowSpan: lines.length === it.source.length ? 1 : it.source.length });
      cell.dataset.name = name;
      for (const [text, differs] of lines[i]) cell.append(differs ? make("mark", { textContent: text }) : text);
      row.append(cell);
    }
    body.append(row);
  });
  byId("sample").replaceChildren(make("table", {}, make("thead", {}, head), body));
  if (it.omitted) byId("sample").append(make("p", { className: "note", textContent: `${it.omitted} further lines are not shown.` }));
  byId("documents").querySelectorAll("[data-document]").forEach((button, i) => button.setAttribute("aria-pressed", i === number));
}
if (data.samples.length) {
  data.samples.forEach((it, i) => {
    const button = make("button", { type: "button", textContent: `Document ${it.number}`, onclick: () => sample(i) });
    button.dataset.document = i;
    byId("documents").append(button);
  });
  const first = data.samples[0];
  if (first.reference.length || first.runs.length > 1) {
    const only = make("input", { type: "checkbox", id: "only", onchange: () => byId("sample").classList.toggle("marked", only.checked) });
    byId("documents").append(make("label", {}, only, " only lines with differences"));
  }
  byId("samples-note").textContent = "Line i of a translation belongs to line i of the source."
    + (first.reference.length ? " Marked: words that differ from the reference." : first.runs.length > 1 ? ` Marked: words that differ from ${first.runs[0].name}.` : "");
  sample(0);
}

// ---- attention

let view = null, module = null, chosen = null;
const wordsOf = (side) => [...byId(side).querySelectorAll(".word")];
const percent = (weight) => (weight < 0.01 ? "<1 %" : `${Math.round(100 * weight)} %`);

function fill(side) {
  let index = 0;
  byId(side).replaceChildren(...view[side].map((line, i) => {
    const p = make("p");
    p.dataset.line = i + 1;
    for (const [text, space] of line) {
      const word = make("span", { className: "word", textContent: text, tabIndex: -1 });
      word.setAttribute("role", "button");
      word.dataset.side = side;
      word.dataset.index = index++;
      p.append(word, space);
    }
    return p;
  }));
  const first = byId(side).querySelector(".word");
  if (first) first.tabIndex = 0;
}

function highlight() {
  for (const word of document.querySelectorAll(".word")) { word.style.background = ""; word.title = ""; word.classList.remove("chosen"); }
  byId("attends").textContent = "";
  if (chosen === null) return;
  const from = wordsOf(module.from), to = wordsOf(module.to), row = module.rows[chosen];
  const top = Math.max(...row.map((key) => key[1]), 1e-9);
  for (const [key, weight] of row) {
    to[key].style.background = `color-mix(in srgb, var(--accent) ${Math.round(8 + 62 * weight / top)}%, transparent)`;
    to[key].title = percent(weight);
  }
  from[chosen].classList.add("chosen");
  const lineOf = (word) => +word.parentElement.dataset.line, here = lineOf(from[chosen]);
  const rest = 1 - row.reduce((sum, key) => sum + key[1], 0);
  const best = row.slice(0, 5).map(([key, weight]) => {
    const line = lineOf(to[key]);
    return `“${to[key].textContent}” ${percent(weight)}${line === here ? "" : ` (line ${line})`}`;
  });
  byId("attends").textContent = `“${from[chosen].textContent}” (line ${here}) attends to ${best.join(", ") || "no word"}`
    + (rest > 0.05 ? `; ${percent(rest)} goes to weaker links and to the separators between lines.` : ".");
}

function choose(word, focus) {
  if (word.dataset.side !== module.from) { // the first attention that starts on this side
    const other = view.modules.findIndex((m) => m.from === word.dataset.side);
    if (other < 0) return;
    byId("module").value = other;
    module = view.modules[other];
    map();
  }
  wordsOf(word.dataset.side).forEach((w) => { w.tabIndex = w === word ? 0 : -1; });
  chosen = Number(word.dataset.index);
  highlight();
  if (focus) word.focus();
}

function map() {
  const lines = module.lines, several = lines.length > 1 && lines[0].length > 1;
  byId("between").hidden = !several;
  if (!several) return;
  const top = Math.max(...lines.flat());
  const of = (side) => `line of the ${side === "source" ? "source" : "translation"}`;
  const numbers = lines[0].map((_, i) => make("th", { scope: "col", textContent: i + 1 }));
  const rows = lines.map((row, i) => make("tr", {}, make("th", { scope: "row", textContent: i + 1 }), ...row.map((share, j) => {
    const cell = make("td", { title: `line ${i + 1} → line ${j + 1}: ${percent(share)}` });
    cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(100 * Math.sqrt(share / top))}%, var(--card))`;
    return cell;
  })));
  const caption = make("caption", { textContent: `Down: ${of(module.from)}; across: ${of(module.to)} attended to.` });
  byId("map").replaceChildren(make("table", {}, caption, make("thead", {}, make("tr", {}, make("td"), ...numbers)), make("tbody", {}, ...rows)));
}

function pick(select, names, change) {
  select.replaceChildren(...names.map((name, i) => make("option", { value: i, textContent: name })));
  select.onchange = () => change(Number(select.value));
}

function openView(i) {
  view = data.views[i];
  fill("source");
  fill("target");
  pick(byId("module"), view.modules.map((m) => m.name), (j) => {
    const side = module.from;
    module = view.modules[j];
    map();
    if (module.from !== side) chosen = null;
    highlight();
  });
  byId("module").value = view.open[0];
  module = view.modules[view.open[0]];
  map();
  const word = wordsOf(module.from)[view.open[1]];
  if (!word) return;
  choose(word, false);
  for (const box of ["source", "target"]) { // into view, without moving the page
    const seen = byId(box).querySelector(box === module.from ? ".chosen" : `[data-index="${module.rows[chosen][0]?.[0]}"]`);
    if (seen) byId(box).scrollTop = Math.max(0, seen.offsetTop - byId(box).offsetTop - byId(box).clientHeight / 2);
  }
}

byId("attention").addEventListener("click", (event) => {
  const word = event.target.closest(".word");
  if (word) choose(word, false);
});
byId("attention").addEventListener("keydown", (event) => {
  const word = event.target.closest(".word");
  if (!word) return;
  const words = wordsOf(word.dataset.side), at = words.indexOf(word);
  const line = [...byId(word.dataset.side).children], here = line.indexOf(word.parentElement);
  const first = (i) => line[i] && line[i].querySelector(".word");
  const next = {
    ArrowRight: words[at + 1], ArrowLeft: words[at - 1], ArrowDown: first(here + 1), ArrowUp: first(here - 1),
    Home: words[0], End: words[words.length - 1], Enter: word, " ": word,
  }[event.key];
  if (!next) return;
  choose(next, true);
  event.preventDefault();
});
if (data.views.length) {
  pick(byId("view"), data.views.map((v) => `${v.document}, ${v.run}`), openView);
  openView(0);
}
