"use strict";
// Polls the server every two seconds. Values are shown as text, never as markup.

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 6000;
const KEY_NAME = "kvreg.key";

const byId = (id) => document.getElementById(id);
const SHOWN = [
  "model", "profile", "updated", "tiles", "lanes", "lanes-note", "entries", "entries-note", "anchors", "anchors-note",
  "memory", "paths", "evictions", "requests", "requests-note",
];
let lastSeen = null;

class Refused extends Error {}
class Failed extends Error {}

// Formatting.

const count = (value) => (value ?? 0).toLocaleString("en");
const part = (value, of) => (of > 0 ? `${((100 * value) / of).toFixed(value % of === 0 ? 0 : 1)} %` : "–");
const clock = (date) => date.toLocaleTimeString("en-GB");
const many = (value, noun) => `${count(value)} ${value === 1 ? noun : noun.replace(/y$/, "ie") + "s"}`;
const words = (name) => name.replaceAll("_", " ");

function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function bytes(value) {
  if (value >= 2 ** 30) return `${(value / 2 ** 30).toFixed(2)} GiB`;
  if (value >= 2 ** 20) return `${(value / 2 ** 20).toFixed(1)} MiB`;
  return `${(value / 2 ** 10).toFixed(1)} KiB`;
}

// Elements.

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  // Strings become text nodes.
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const tag = (text, kind = "") => make("span", `tag ${kind}`, text);
const small = (text) => make("small", "", text);
const below = (text) => make("small", "below", text);
function identifier(text) {
  const element = make("small", "id", text);
  element.title = text;
  return element;
}
const fill = (id, ...children) => byId(id).replaceChildren(...children);

function track(value, of) {
  const inner = make("div", "fill");
  inner.style.width = `${of > 0 ? Math.min(100, (100 * value) / of) : 0}%`;
  return make("div", "track", inner);
}

const bar = (name, value, of, text) =>
  make("div", "bar", make("div", "", make("span", "", name), make("span", "number", text)), track(value, of));

// A column is [label, class, function of a row]; a column that is empty in all rows is left out.
function table(columns, rows, nothing) {
  if (rows.length === 0) return make("p", "quiet", nothing);
  const shown = rows.map((row) => columns.map(([, , show]) => [show(row)].flat().filter((x) => x !== null && x !== "")));
  const used = columns.map((_, i) => shown.some((cells) => cells[i].length > 0));
  const kept = columns.map((column, i) => [...column, i]).filter(([, , , i]) => used[i]);
  const head = make("tr", "", ...kept.map(([label, className]) => make("th", className, label)));
  const lines = shown.map((cells) =>
    make("tr", "", ...kept.map(([label, className, , i]) => {
      const cell = make("td", className, ...cells[i]);
      cell.dataset.label = label;
      return cell;
    })));
  return make("table", "", make("thead", "", head), make("tbody", "", ...lines));
}

// The sections of the page.

const KINDS = { prefill: "mark", decode: "good", finished: "good", failed: "bad", cancelled: "warn" };
const ago = (seconds) => (seconds < 1 ? "now" : `${span(seconds)} ago`);

function promises(place) {
  return [
    place.pinned_for_s == null ? null : tag(`pinned for ${span(place.pinned_for_s)}`, "mark"),
    place.expires_in_s == null ? null : tag(`expires in ${span(place.expires_in_s)}`, "warn"),
    place.is_marked ? tag("marked", "mark") : null,
  ];
}

const sequence = (p) => (p.sequence_id == null ? "" : `#${p.sequence_id}`);
const tokens = (p) => (p.sequence_id == null ? "" : count(p.tokens));
const positions = (p) => (p.checkpoint_position == null ? "" : count(p.checkpoint_position));
const tenant = (p) => p.tenant ?? "";
const pages = (p) => (p.sequence_id == null ? "" : count(p.pages));

const LANES = [
  ["Lane", "", (p) => String(p.lane_id)],
  ["State", "", (p) => tag(p.state, KINDS[p.state])],
  ["Sequence", "", sequence],
  ["Tenant", "name", tenant],
  ["Tokens", "number", tokens],
  ["Checkpoint at", "number", positions],
  ["Pages", "number", pages],
  ["Last used", "number", (p) => (p.sequence_id == null ? "" : ago(p.age_s))],
  ["Request", "wide", (p) => (p.request_id ? identifier(p.request_id) : "")],
  ["Promises", "wide", promises],
];
const ENTRIES = [
  ["Entry", "", (p) => String(p.entry_id)],
  ["Sequence", "", sequence],
  ["Tenant", "name", tenant],
  ["Tokens", "number", tokens],
  ["Checkpoint at", "number", positions],
  ["Pages", "number", pages],
  ["Size", "number", (p) => bytes(p.bytes)],
  ["Value", "number", (p) => p.value.toPrecision(3)],
  ["Came back", "number", (p) => `${count(p.num_hits)} ×`],
  ["Last used", "number", (p) => ago(p.idle_s)],
  ["Promises", "wide", promises],
];
const ANCHORS = [["Anchor", "", (p) => String(p.anchor_id)], ...ENTRIES.slice(1)].map(([label, ...rest]) =>
  [label === "Came back" ? "Used" : label, ...rest]);

function prompt(r) {
  if (r.cached_tokens == null) return count(r.prompt_tokens);
  const made = below(`${count(r.cached_tokens)} kept + ${count(r.computed_tokens)}`);
  return [count(r.prompt_tokens), made, track(r.cached_tokens, r.prompt_tokens)];
}

const REQUESTS = [
  ["When", "short", (r) => [clock(new Date(Date.now() - 1000 * r.ended_ago_s)), below(ago(r.ended_ago_s))]],
  ["Tenant", "name", tenant],
  ["Outcome", "", (r) => tag(r.error_code ?? (r.outcome === "finished" ? r.finish_reason ?? "" : r.outcome), KINDS[r.outcome])],
  ["Began at", "", (r) => (r.reuse_path ? [words(r.reuse_path), r.attach === "none" ? null : below(`from ${r.attach}`)] : "no lane")],
  ["Tail", "short", (r) => r.tail],
  ["Prompt", "number", prompt],
  ["Answer", "number", (r) => count(r.completion_tokens)],
  ["First token", "number", (r) => span(r.ttft_s)],
  ["Total", "number", (r) => span(r.total_s)],
  ["Request", "wide", (r) => identifier(r.request_id)],
];

const tile = (value, text) => make("div", "tile", make("b", "", value), make("span", "", text));

function showTiles(registry, counts) {
  const totals = registry.totals;
  const started = Object.values(totals.requests_by_path).reduce((a, b) => a + b, 0);
  const reused = started - (totals.requests_by_path.full_reset ?? 0);
  fill("tiles",
    tile(part(counts.returned, counts.requests), `assistant tail and registry hit: ${count(counts.returned)} of ${count(counts.requests)} requests`),
    tile(part(counts.from_registry, counts.requests), `registry hits: ${count(counts.from_registry)} of ${count(counts.requests)} requests`),
    tile(part(reused, started), `reused anything: ${count(reused)} of ${count(started)} that had a lane`),
    tile(part(totals.cached_tokens, totals.cached_tokens + totals.computed_tokens), `of prompt tokens not computed again: ${count(totals.cached_tokens)}`),
    tile(`${count(registry.running)} / ${count(registry.queued)}`, "running / waiting"),
    tile(count(totals.failed), `failed; ${count(totals.finished)} finished, ${count(totals.cancelled)} cancelled`));
}

function showPlaces(registry) {
  const kept = (places) => places.filter((place) => place.state === "kept");
  const note = (places, of) => `${kept(places).length} of ${of} kept`;
  fill("lanes", table(LANES, registry.lanes, "None of yours."));
  fill("entries", table(ENTRIES, kept(registry.entries), "Nothing is kept in an entry."));
  fill("anchors", table(ANCHORS, kept(registry.anchors), "No head is kept."));
  fill("lanes-note", `${registry.running} running, ${registry.queued} waiting`);
  fill("entries-note", note(registry.entries, registry.profile.entries));
  fill("anchors-note", note(registry.anchors, registry.profile.anchors));
}

function showCounts(registry) {
  const { pools, state_slots: slots, totals } = registry;
  fill("memory",
    ...pools.map((p) => bar(`Pages, ${p.name}`, p.referenced, p.total, `${count(p.referenced)} of ${count(p.total)}`)),
    bar("State slots", slots.used, slots.total, `${count(slots.used)} of ${count(slots.total)}`));
  const paths = [...Object.entries(totals.requests_by_path), ["no_lane", totals.never_started]];
  const all = paths.reduce((sum, [, n]) => sum + n, 0);
  fill("paths", ...paths.map(([name, n]) => bar(words(name), n, all, `${count(n)}, ${part(n, all)}`)));
  const reasons = Object.entries(totals.evictions_by_reason).filter(([, n]) => n > 0);
  const given = reasons.reduce((sum, [, n]) => sum + n, 0);
  fill("evictions", ...(given === 0 ? [make("p", "quiet", "Nothing was given up.")]
    : reasons.map(([name, n]) => bar(words(name), n, given, count(n)))));
}

function show(registry, activity) {
  const p = registry.profile;
  document.title = `kvreg ${p.model}`;
  fill("model", p.model);
  fill("profile", [
    p.profile ? `profile ${p.profile}` : null, many(p.lanes, "lane"), many(p.entries, "entry"), many(p.anchors, "anchor"),
    `current state: ${p.current_state}`, `eviction: ${p.eviction}`, `context ${count(p.max_context_tokens)}`, p.device,
    `hash ${p.profile_hash}`,
  ].filter((text) => text !== null).join(" · "));
  showTiles(registry, activity.counts);
  showPlaces(registry);
  showCounts(registry);
  fill("requests", table(REQUESTS, activity.requests, "None has ended yet."));
  fill("requests-note", activity.requests.length ? `the newest ${activity.requests.length} that ended` : "");
}

// Requests to the server.

async function read(path) {
  const key = sessionStorage.getItem(KEY_NAME);
  // Headers cannot contain other characters, and no key does.
  if (key !== null && !/^[\x21-\x7e]+$/.test(key)) throw new Refused();
  const headers = key && path.startsWith("v1/") ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (response.status === 401) throw new Refused();
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Failed(body?.error?.message ?? `the server answers with status ${response.status}`);
  }
  return response.json();
}

function say(kind, text, notice = "") {
  byId("status").className = `status ${kind}`;
  fill("status", text);
  byId("notice").className = `notice ${kind}`;
  fill("notice", notice);
  byId("notice").hidden = notice === "";
}

function askForKey(hadKey) {
  sessionStorage.removeItem(KEY_NAME);
  byId("shown").hidden = true;
  byId("ask-key").hidden = false;
  byId("forget-key").hidden = true;
  // Data of another key is cleared.
  for (const id of SHOWN) fill(id);
  document.title = "kvreg";
  say("warn", "locked", hadKey ? "The server does not know this key." : "");
}

async function readHealth() {
  try {
    return (await read("health")).status;
  } catch (error) {
    if (error instanceof Failed) return error.message;
    throw error;
  }
}

function showAll([registry, activity, health]) {
  show(registry, activity);
  lastSeen = new Date();
  byId("shown").hidden = false;
  byId("shown").classList.remove("old");
  byId("ask-key").hidden = true;
  byId("forget-key").hidden = sessionStorage.getItem(KEY_NAME) === null;
  fill("updated", `as of ${clock(lastSeen)}`);
  if (health === "draining") say("warn", "draining", "The server is draining: it finishes what runs and takes nothing new.");
  else if (health === "ok") say("good", "serving");
  else say("bad", "not ready", health);
}

function tellTrouble(error) {
  if (error instanceof Refused) return askForKey(sessionStorage.getItem(KEY_NAME) !== null);
  const seen = lastSeen ? ` What is shown is from ${clock(lastSeen)}.` : "";
  byId("shown").classList.add("old");
  if (error instanceof Failed) say("bad", "in trouble", `${error.message}.${seen}`);
  else say("bad", "unreachable", `The server cannot be reached.${seen}`);
}

let timer = null;
// Only the response of the latest request is used: the key may have been forgotten since.
let turn = 0;

async function poll() {
  clearTimeout(timer);
  const mine = ++turn;
  // While the form is open, there is no key.
  if (!document.hidden && byId("ask-key").hidden) {
    const asked = Promise.all([read("v1/registry"), read("v1/registry/requests"), readHealth()]);
    const then = (act) => (answer) => (mine === turn ? act(answer) : null);
    await asked.then(then(showAll)).catch(then(tellTrouble));
  }
  if (mine === turn) timer = setTimeout(poll, INTERVAL_MS);
}

byId("ask-key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY_NAME, byId("key").value.trim());
  byId("key").value = "";
  byId("ask-key").hidden = true;
  poll();
});
byId("forget-key").addEventListener("click", () => {
  askForKey(false);
  poll();
});
document.addEventListener("visibilitychange", poll);
poll();
