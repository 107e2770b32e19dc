// The console: five views over the API of the same program. Everything that comes from it is put into the page as text,
// never as HTML; the rules of the page (Content-Security-Policy, trusted types) would stop anything else.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const VIEWS = ["connections", "volumes", "snapshots", "calls", "orphans"];
const REFRESH = 10000; // What the program knows by itself is asked for again after so many milliseconds.

const main = document.getElementById("main");
let turn = 0; // Answers to a view that was left are dropped.
let timer = null;

// --- The page ---

function fill(node, content) {
  for (const part of content.flat(3)) {
    if (part !== null && part !== undefined && part !== false) node.append(part);
  }
  return node;
}

function element(tag, names, ...content) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(names || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  return fill(node, content);
}

function drawn(tag, names, ...content) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(names || {})) node.setAttribute(name, value);
  return fill(node, content);
}

const div = (kind, ...content) => element("div", { class: kind }, ...content);
const badge = (kind, text) => element("span", { class: `badge ${kind}` }, text);
const note = (kind, ...content) => element("p", { class: `note ${kind}` }, ...content);
const link = (href, ...content) => element("a", { href }, ...content);

function show(...content) {
  const active = document.activeElement;
  const kept = active && main.contains(active) && active.id ? [active.id, active.selectionStart] : null;
  main.replaceChildren();
  fill(main, content);
  main.removeAttribute("aria-busy");
  const again = kept && document.getElementById(kept[0]);
  if (again) {
    again.focus();
    if (kept[1] !== null && kept[1] !== undefined && again.setSelectionRange) again.setSelectionRange(kept[1], kept[1]);
  }
}

function say(text) {
  document.getElementById("said").textContent = text;
}

// --- Words ---

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let place = 0;
  while (bytes >= 1024 && place < units.length - 1) { bytes /= 1024; place += 1; }
  return `${place === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1).replace(/\.0$/, "")} ${units[place]}`;
}

function age(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

function took(milliseconds) {
  if (milliseconds < 1000) return `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : age(seconds);
}

function moment(seconds) {
  const date = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const isToday = date.toDateString() === new Date().toDateString();
  const text = isToday ? time : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time.slice(0, 5)}`;
  return element("time", { datetime: date.toISOString(), title: date.toISOString() }, text);
}

const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

// --- The API ---

async function ask(path, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) words.append(name, one);
  }
  const answer = await fetch(`/api/${path}?${words}`, { headers: { Accept: "application/json" } });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || `the program answers ${answer.status}`);
  return body;
}

async function status() {
  const now = await ask("status");
  document.getElementById("name").textContent = now.name;
  const about = `Version ${now.version}, running for ${age(now.now - now.since)}`;
  document.getElementById("about").textContent = about;
  const state = document.getElementById("state");
  const isWell = now.unhealthy === 0 && !now.incomplete;
  const text = isWell ? count(now.connections, "connection, well", "connections, all well") : `${now.unhealthy} of ${now.connections} need attention`;
  state.replaceChildren(badge(isWell ? "good" : "bad", text));
  return now;
}

// --- Where we are: the view and its query are in the address, so that links, back and forward work ---

function place() {
  const [view, words] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: view || VIEWS[0], query: Object.fromEntries(new URLSearchParams(words || "")) };
}

function address(view, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) words.append(name, value);
  const text = words.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

function go(view, query) {
  history.replaceState(null, "", address(view, query));
  draw();
}

// --- Parts of views ---

function searchField(view, query, hint) {
  const field = element("input", { type: "search", id: "search", placeholder: hint, "aria-label": hint, autocomplete: "off", spellcheck: "false", maxlength: 200 });
  field.value = query.search || "";
  let waiting = null;
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => go(view, { ...place().query, search: field.value, after: "" }), 300);
  });
  return field;
}

async function connectionField(view, query) {
  const known = (await ask("connections", { limit: 500 })).rows.map((row) => row.name);
  if (known.length < 2) return null;
  const field = element("select", { id: "connection", "aria-label": "Connection" }, element("option", { value: "" }, "All connections"));
  for (const name of known) field.append(element("option", { value: name }, name));
  field.value = query.connection || "";
  field.addEventListener("change", () => go(view, { ...query, connection: field.value, after: "" }));
  return field;
}

function table(columns, rows) {
  const head = columns.map(([title, kind]) => element("th", { scope: "col", class: kind }, title));
  const body = element("tbody", {});
  for (const row of rows) {
    const cells = row.cells.map((cell, at) => {
      const [title, kind] = columns[at];
      const isHollow = cell === null || cell === undefined || cell === "";
      const lead = at === 0 ? "lead-cell" : "";
      return element("td", { class: `${kind || ""} ${lead} ${isHollow ? "hollow" : ""}`.trim(), "data-label": title }, div("", cell));
    });
    body.append(element("tr", {}, cells));
    if (row.more) body.append(element("tr", { class: "more" }, element("td", { colspan: columns.length }, row.more)));
  }
  return div("sheet", element("table", {}, element("thead", {}, element("tr", {}, head)), body));
}

function pages(view, query, page, words) {
  const next = page.next && element("a", { href: address(view, { ...query, after: page.next }), id: "next" }, "Next page");
  const first = query.after && link(address(view, { ...query, after: "" }), "First page");
  const looked = query.search ? `${count(page.looked_at, "looked at", "looked at")}${page.next ? ", there is more" : ""}` : "";
  return div("pages", first, next, element("span", {}, [count(page.rows.length, ...words), looked].filter(Boolean).join(" · ")));
}

function silences(page) {
  return page.silent.map((one) => note("bad", `${one.connection || "The storage"} did not answer, its rows are missing: ${one.error}`));
}

function nothing(page, query, what) {
  if (page.rows.length > 0) return null;
  const searched = query.search ? `No ${what} with “${query.search}”` : `No ${what}`;
  return div("sheet", div("empty", page.next ? `${searched} so far. The next page goes on.` : `${searched}.`));
}

// --- Views ---

function curve(points) {
  if (points.length < 2) return null;
  const [begin, end] = [points[0][0], points[points.length - 1][0]];
  const values = points.map((point) => point[1]);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  // A curve that hardly changes is drawn as a calm line, and not as noise.
  const span = Math.max(most - least, most * 0.02, 1);
  const x = (time) => (300 * (time - begin)) / Math.max(end - begin, 1);
  const y = (value) => 52 - (44 * (value - (most + least - span) / 2)) / span;
  const line = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const picture = drawn("svg", { class: "curve", viewBox: "0 0 300 58", preserveAspectRatio: "none", role: "img", "aria-label": `Free space: from ${size(points[0][1])} to ${size(values[values.length - 1])}` },
    drawn("polygon", { class: "area", points: `0,58 ${line} 300,58` }), drawn("polyline", { class: "line", points: line }));
  return [picture, div("axis", element("span", {}, `${age(end - begin)} ago: ${size(points[0][1])}`), element("span", {}, "now"))];
}

const HEALTH = { good: ["good", "Well"], bad: ["bad", "Not usable"], invalid: ["bad", "File not usable"], unknown: ["", "Not asked yet"] };

async function connections(query) {
  const page = await ask("connections", query);
  const now = await status();
  const cards = page.rows.map((row) => {
    const [kind, word] = HEALTH[row.health];
    const facts = [
      row.volumes !== null && link(address("volumes", { connection: row.name }), count(row.volumes, "volume", "volumes")),
      row.orphans > 0 && link(address("orphans", { connection: row.name }), count(row.orphans, "orphan", "orphans")),
      row.probed_seconds_ago !== null && element("span", {}, `asked ${age(row.probed_seconds_ago)} ago`),
    ];
    return element("section", { class: "card" },
      div("head", element("h2", {}, row.name || "The storage"), badge(kind, word)),
      element("span", { class: "quiet mono" }, row.driver || "no driver"),
      row.error && note("bad", row.error),
      row.available !== null && div("free", size(row.available), element("small", {}, " free")),
      curve(row.history),
      div("facts", facts));
  });
  const next = page.next && div("pages", element("a", { id: "next", href: address("connections", { ...query, after: page.next }) }, "Next page"));
  return [
    element("h1", {}, "Connections"),
    element("p", { class: "lead" }, "The storages of this controller. Each is asked once a minute how it is, and every five minutes how much is free."),
    now.connections > 8 && div("tools", searchField("connections", query, "Search connections")),
    now.incomplete && note("warn", now.incomplete),
    cards.length ? div("cards", cards) : div("sheet", div("empty", "No connections.")),
    next,
  ];
}

function useBar(used, all) {
  const part = Math.min(1, used / all);
  return drawn("svg", { class: "use", viewBox: "0 0 84 5", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { class: "all", width: 84, height: 5, rx: 2.5 }),
    drawn("rect", { class: part > 0.9 ? "full" : "part", width: Math.max(2, 84 * part).toFixed(1), height: 5, rx: 2.5 }));
}

const EXPORTS = { exported: ["good", "exported"], missing: ["bad", "missing"], unknown: ["warn", "unknown"], gone: ["", "gone"] };

async function volumes(query) {
  const mine = turn;
  const [page, filter] = await Promise.all([ask("volumes", query), connectionField("volumes", query)]);
  const later = new Map();
  const rows = page.rows.map((row) => {
    const use = element("div", {}, "…");
    const state = element("div", {}, "…");
    later.set(row.handle, { use, state, row });
    return { cells: [
      [div("name mono", link(address("family", { volume: row.handle }), row.id)), row.claim && div("under", row.claim)],
      row.connection,
      element("span", { title: row.driver }, row.protocol),
      row.nodes.length ? row.nodes.join(", ") : null,
      row.size === null ? "no limit" : size(row.size),
      use,
      state,
    ] };
  });
  if (page.rows.length) details(page.rows.map((row) => row.handle), later, mine);
  return [
    element("h1", {}, "Volumes"),
    element("p", { class: "lead" }, "Asked of the storage now. Claims and nodes are those of calls since this process began."),
    div("tools", searchField("volumes", query, "Search volumes, claims, nodes"), filter),
    silences(page),
    page.rows.length > 0 && table([["Volume"], ["Connection"], ["Protocol"], ["Node"], ["Size", "number"], ["Used", "number"], ["Export"]], rows),
    nothing(page, query, "volumes"),
    pages("volumes", query, page, ["volume", "volumes"]),
  ];
}

// The use and the exports of the rows that are shown; the list does not wait for them.
async function details(handles, later, mine) {
  for (let begin = 0; begin < handles.length && mine === turn; begin += 50) {
    const some = handles.slice(begin, begin + 50);
    let found = [];
    try {
      found = (await ask("details", { volume: some })).rows;
    } catch (error) {
      found = some.map((handle) => ({ handle, used: null, export: "unknown", error: error.message }));
    }
    for (const detail of found) {
      const { use, state, row } = later.get(detail.handle) || {};
      if (!use) continue;
      use.replaceChildren(size(detail.used));
      if (detail.used !== null && row.size) use.append(useBar(detail.used, row.size));
      const words = EXPORTS[detail.export];
      state.replaceChildren(words ? badge(...words) : "–");
      if (detail.error) state.setAttribute("title", detail.error);
    }
  }
  if (mine === turn) main.setAttribute("data-details", "done");
}

async function snapshots(query) {
  const [page, filter] = await Promise.all([ask("snapshots", query), connectionField("snapshots", query)]);
  const groups = new Map();
  for (const row of page.rows) {
    if (!groups.has(row.volume)) groups.set(row.volume, []);
    groups.get(row.volume).push(row);
  }
  const shown = [...groups].map(([volume, rows]) => div("group",
    div("top", element("span", { class: "kind" }, "volume"), element("span", { class: "name mono" }, link(address("family", { volume }), rows[0].volume_id)),
      element("span", { class: "quiet" }, rows[0].connection)),
    element("ul", { class: "tree below" }, rows.map((row) => element("li", {}, div("node",
      element("span", { class: "name mono" }, row.id), element("span", { class: "quiet" }, moment(row.created), " · ", size(row.size)), !row.ready && badge("warn", "being made")))))));
  return [
    element("h1", {}, "Snapshots"),
    element("p", { class: "lead" }, "Below the volume that each was taken of. The name of the volume leads to its whole family: where it comes from, and what was made of it."),
    div("tools", searchField("snapshots", query, "Search snapshots and volumes"), filter),
    silences(page),
    shown.length > 0 && div("sheet", shown),
    nothing(page, query, "snapshots"),
    pages("snapshots", query, page, ["snapshot", "snapshots"]),
  ];
}

async function family(query) {
  const [found, more] = await Promise.all([ask("family", query), ask("details", { volume: query.volume })]);
  const root = element("ul", { class: "tree" });
  const lists = [root];
  for (const member of found.members) {
    const name = member.kind === "volume" && member.exists ? link(address("family", { volume: member.handle }), member.handle) : member.handle;
    const item = element("li", {}, element("div", { class: `node${member.asked ? " asked" : ""}${member.exists ? "" : " gone"}` },
      element("span", { class: "kind" }, member.kind), element("span", { class: "name mono" }, name),
      element("span", { class: "quiet" }, member.created !== null && [moment(member.created), " · "], member.exists ? size(member.size) : "deleted")));
    lists.length = member.depth + 1;
    let list = lists[member.depth];
    if (!list) {
      list = element("ul", {});
      lists[member.depth - 1].lastElementChild.append(list);
      lists[member.depth] = list;
    }
    list.append(item);
  }
  const detail = more.rows[0];
  const facts = detail && [detail.used !== null && `${size(detail.used)} used`, EXPORTS[detail.export] && `export ${EXPORTS[detail.export][1]}`, detail.error].filter(Boolean).join(" · ");
  return [
    element("p", { class: "quiet" }, link("#/volumes", "Volumes"), " / family"),
    element("h1", {}, element("span", { class: "mono" }, query.volume)),
    element("p", { class: "lead" }, facts || "A volume with what it comes from and what was made of it."),
    found.incomplete && note("warn", `Not all is shown: ${found.incomplete}`),
    div("sheet family", root),
    element("p", {}, link(address("calls", { search: query.volume.replace(/^v:[^/]*\//, "") }), "Its calls of the last hour")),
  ];
}

function hour(minutes) {
  const most = Math.max(1, ...minutes.map(([ok, failed]) => ok + failed));
  const picture = drawn("svg", { class: "hour", viewBox: "0 0 600 76", preserveAspectRatio: "none", role: "img", "aria-label": "Calls of each minute of the last hour" },
    drawn("line", { class: "ground", x1: 0, x2: 600, y1: 75.5, y2: 75.5 }));
  minutes.forEach(([ok, failed], at) => {
    const [low, high] = [(70 * failed) / most, (70 * ok) / most];
    if (failed) picture.append(drawn("rect", { class: "failed", x: at * 10 + 1, width: 8, y: (75 - low).toFixed(1), height: low.toFixed(1) }));
    if (ok) picture.append(drawn("rect", { class: "ok", x: at * 10 + 1, width: 8, y: (75 - low - high).toFixed(1), height: high.toFixed(1) }));
  });
  return div("sheet chart", div("legend", element("span", {}, element("i", {}), "succeeded"), element("span", {}, element("i", { class: "failed" }), "failed"), element("span", {}, `at most ${most} a minute`)),
    picture, div("axis", element("span", {}, "an hour ago"), element("span", {}, "now")));
}

async function calls(query) {
  const page = await ask("calls", query);
  await status();
  const rows = page.rows.map((row) => {
    const about = [row.volume || row.snapshot || row.path, row.claim, row.node && `node ${row.node}`].filter(Boolean);
    return {
      cells: [
        [div("name", row.rpc), about.length > 0 && div("under", about.join(" · "))],
        row.connection,
        moment(row.began),
        took(row.took_milliseconds),
        badge(row.code === "OK" ? "good" : "bad", row.code),
      ],
      more: row.reason && div("reason", row.reason),
    };
  });
  const tick = element("input", { type: "checkbox", id: "failed" });
  tick.checked = query.failed === "true";
  tick.addEventListener("change", () => go("calls", { ...query, failed: tick.checked ? "true" : "" }));
  const said = page.rows.length < page.matching ? `${page.rows.length} newest of ${page.matching} calls` : count(page.matching, "call", "calls");
  return [
    element("h1", {}, "Calls of the last hour"),
    element("p", { class: "lead" }, "What the orchestrator asked of this process. Probes that succeed are left out."),
    page.kept > 0 && hour(page.minutes),
    div("tools", searchField("calls", query, "Search calls, volumes, reasons"), element("label", { class: "tick" }, tick, "Failed only")),
    rows.length > 0 && table([["Call"], ["Connection"], ["Began", "when"], ["Took", "number"], ["Outcome"]], rows),
    rows.length === 0 && div("sheet", div("empty", page.kept ? "No such call." : "No calls yet.")),
    div("pages", element("span", {}, said)),
  ];
}

async function orphans(query) {
  const page = await ask("orphans", query);
  const rows = page.rows.map((row) => ({ cells: [element("span", { class: "mono" }, row.object), row.connection, row.kind, age(row.age_seconds)] }));
  return [
    element("h1", {}, "Orphans"),
    element("p", { class: "lead" }, "What calls that were never finished left on the storage, older than a day. ", element("code", {}, "omnibus-csi orphans --remove"), " removes them; this page changes nothing."),
    div("tools", searchField("orphans", query, "Search orphans")),
    silences(page),
    rows.length > 0 && table([["Object"], ["Connection"], ["Kind"], ["Age", "number"]], rows),
    nothing(page, query, "orphans"),
    page.unsupported.length > 0 && element("p", { class: "quiet" }, `Not asked, because their drivers cannot tell: ${page.unsupported.map((name) => name || "the storage").join(", ")}`),
    pages("orphans", query, page, ["orphan", "orphans"]),
  ];
}

const DRAW = { connections, volumes, snapshots, family, calls, orphans };

async function draw() {
  const mine = ++turn;
  clearTimeout(timer);
  const { view, query } = place();
  const chosen = DRAW[view] ? view : VIEWS[0];
  for (const tab of document.querySelectorAll("nav a")) {
    const isHere = tab.getAttribute("href") === `#/${chosen === "family" ? "volumes" : chosen}`;
    if (isHere) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  main.removeAttribute("data-details");
  try {
    const content = await DRAW[chosen](query);
    if (mine !== turn) return;
    show(...content);
    main.setAttribute("data-view", chosen);
    const title = main.querySelector("h1").textContent;
    if (document.title !== `${title} – omnibus-csi`) say(title);
    document.title = `${title} – omnibus-csi`;
  } catch (error) {
    if (mine !== turn) return;
    show(element("h1", {}, "No answer"), note("bad", `The program could not be asked: ${error.message}`), element("p", {}, link(location.hash || "#/connections", "Look again")));
    main.setAttribute("data-view", "failed");
  }
  if (chosen === "connections" || chosen === "calls") timer = setTimeout(again, REFRESH);
}

// Not while the page is not seen, or something is being written.
function again() {
  if (document.hidden || (document.activeElement && document.activeElement.tagName === "INPUT")) timer = setTimeout(again, REFRESH);
  else draw();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isWriting = ["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && isWriting) event.target.blur();
  if (isWriting) return;
  const number = Number(event.key);
  const field = document.getElementById("search");
  const next = document.getElementById("next");
  if (number >= 1 && number <= VIEWS.length) location.hash = `#/${VIEWS[number - 1]}`;
  else if (event.key === "/" && field) field.focus();
  else if (event.key === "n" && next) location.hash = next.getAttribute("href");
  else if (event.key === "r") draw();
  else return;
  event.preventDefault();
});

window.addEventListener("hashchange", () => {
  // The link to the content is no view.
  if (location.hash === "#main") return main.focus();
  draw();
  window.scrollTo(0, 0);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && timer) draw(); });

status().catch(() => {});
draw();
