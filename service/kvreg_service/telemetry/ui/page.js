"use strict";
// Polls the state of the server every two seconds. Values are rendered as text, never as markup.

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 6000;
const KEY_NAME = "kvreg.key";

const byId = (id) => document.getElementById(id);
const SHOWN = [
  "model", "profile", "updated", "tiles", "lanes", "lanes-note", "entries", "entries-note", "anchors", "anchors-note",
  "memory", "paths", "evictions", "requests", "requests-note",
];
let lastSeen = null;

class Unauthorized extends Error {}
class RequestFailed extends Error {}

// Formatting.

const count = (value) => (value ?? 0).toLocaleString("en");
const percent = (value, of) => (of > 0 ? `${((100 * value) / of).toFixed(value % of === 0 ? 0 : 1)} %` : "–");
const clock = (date) => date.toLocaleTimeString("en-GB");
const plural = (value, noun) => `${count(value)} ${value === 1 ? noun : noun.replace(/y$/, "ie") + "s"}`;
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
  // append() makes text nodes of strings.
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

// A column is [label, class, function of a row]. Columns that are empty in every row are omitted.
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

// Tables, tiles and bars.

const KINDS = { prefill: "mark", decode: "good", finished: "good", failed: "bad", cancelled: "warn" };
const ago = (seconds) => (seconds < 1 ? "now" : `${span(seconds)} ago`);

function retention(place) {
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
  ["Retention", "wide", retention],
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
  ["Hits", "number", (p) => count(p.num_hits)],
  ["Last used", "number", (p) => ago(p.idle_s)],
  ["Retention", "wide", retention],
];
const ANCHORS = [["Anchor", "", (p) => String(p.anchor_id)], ...ENTRIES.slice(1)];

function prompt(r) {
  if (r.cached_tokens == null) return count(r.prompt_tokens);
  const made = below(`${count(r.cached_tokens)} cached + ${count(r.computed_tokens)} computed`);
  return [count(r.prompt_tokens), made, track(r.cached_tokens, r.prompt_tokens)];
}

const REQUESTS = [
  ["Ended", "short", (r) => [clock(new Date(Date.now() - 1000 * r.ended_ago_s)), below(ago(r.ended_ago_s))]],
  ["Tenant", "name", tenant],
  ["Outcome", "", (r) => tag(r.error_code ?? (r.outcome === "finished" ? r.finish_reason ?? "" : r.outcome), KINDS[r.outcome])],
  ["Reuse path", "", (r) => (r.reuse_path ? [words(r.reuse_path), r.attach === "none" ? null : below(`from ${r.attach}`)] : "no lane")],
  ["Tail", "short", (r) => r.tail],
  ["Prompt", "number", prompt],
  ["Output", "number", (r) => count(r.completion_tokens)],
  ["TTFT", "number", (r) => span(r.ttft_s)],
  ["Duration", "number", (r) => span(r.total_s)],
  ["Request", "wide", (r) => identifier(r.request_id)],
];

const tile = (value, text) => make("div", "tile", make("b", "", value), make("span", "", text));

function showTiles(registry, counts) {
  const totals = registry.totals;
  const started = Object.values(totals.requests_by_path).reduce((a, b) => a + b, 0);
  const reused = started - (totals.requests_by_path.full_reset ?? 0);
  fill("tiles",
    tile(percent(counts.returned, counts.requests), `registry hits with assistant tail: ${count(counts.returned)} of ${count(counts.requests)} requests`),
    tile(percent(counts.from_registry, counts.requests), `registry hits: ${count(counts.from_registry)} of ${count(counts.requests)} requests`),
    tile(percent(reused, started), `prefix cache hits: ${count(reused)} of ${count(started)} admitted requests`),
    tile(percent(totals.cached_tokens, totals.cached_tokens + totals.computed_tokens), `prompt tokens cached: ${count(totals.cached_tokens)} of ${count(totals.cached_tokens + totals.computed_tokens)}`),
    tile(`${count(registry.running)} / ${count(registry.queued)}`, "running / queued"),
    tile(count(totals.failed), `failed; ${count(totals.finished)} finished, ${count(totals.cancelled)} cancelled`));
}

function showPlaces(registry) {
  const kept = (places) => places.filter((place) => place.state === "kept");
  const note = (places, of) => `${kept(places).length} of ${of} in use`;
  fill("lanes", table(LANES, registry.lanes, "No lane holds a request or sequence of this tenant."));
  fill("entries", table(ENTRIES, kept(registry.entries), "No entry is in use."));
  fill("anchors", table(ANCHORS, kept(registry.anchors), "No anchor is in use."));
  fill("lanes-note", `${registry.running} running, ${registry.queued} queued`);
  fill("entries-note", note(registry.entries, registry.profile.entries));
  fill("anchors-note", note(registry.anchors, registry.profile.anchors));
}

function showCounts(registry) {
  const { pools, state_slots: slots, totals } = registry;
  fill("memory",
    ...pools.map((p) => bar(`Pages (${p.name})`, p.referenced, p.total, `${count(p.referenced)} of ${count(p.total)}`)),
    bar("State slots", slots.used, slots.total, `${count(slots.used)} of ${count(slots.total)}`));
  const paths = [...Object.entries(totals.requests_by_path), ["no_lane", totals.never_started]];
  const all = paths.reduce((sum, [, n]) => sum + n, 0);
  fill("paths", ...paths.map(([name, n]) => bar(words(name), n, all, `${count(n)}, ${percent(n, all)}`)));
  const reasons = Object.entries(totals.evictions_by_reason).filter(([, n]) => n > 0);
  const evicted = reasons.reduce((sum, [, n]) => sum + n, 0);
  fill("evictions", ...(evicted === 0 ? [make("p", "quiet", "No evictions.")]
    : reasons.map(([name, n]) => bar(words(name), n, evicted, count(n)))));
}

function show(registry, activity) {
  const p = registry.profile;
  document.title = `kvreg ${p.model}`;
  fill("model", p.model);
  fill("profile", [
    p.profile ? `profile ${p.profile}` : null, plural(p.lanes, "lane"), plural(p.entries, "entry"), plural(p.anchors, "anchor"),
    `current state: ${p.current_state}`, `eviction: ${p.eviction}`, `context ${count(p.max_context_tokens)}`, p.device,
    `hash ${p.profile_hash}`,
  ].filter((text) => text !== null).join(" · "));
  showTiles(registry, activity.counts);
  showPlaces(registry);
  showCounts(registry);
  fill("requests", table(REQUESTS, activity.requests, "No request has ended yet."));
  fill("requests-note", activity.requests.length ? `the ${activity.requests.length} that ended last` : "");
}

// Polling.

async function read(path) {
  const key = sessionStorage.getItem(KEY_NAME);
  // An HTTP header cannot carry other characters, so no valid key contains any.
  if (key !== null && !/^[\x21-\x7e]+$/.test(key)) throw new Unauthorized();
  const headers = key && path.startsWith("v1/") ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (response.status === 401) throw new Unauthorized();
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new RequestFailed(body?.error?.message ?? `HTTP status ${response.status}`);
  }
  return response.json();
}

function setStatus(kind, text, notice = "") {
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
  // Remove the data that the previous key gave access to.
  for (const id of SHOWN) fill(id);
  document.title = "kvreg";
  setStatus("warn", "locked", hadKey ? "The server rejected this key." : "");
}

async function readHealth() {
  try {
    return (await read("health")).status;
  } catch (error) {
    if (error instanceof RequestFailed) return error.message;
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
  if (health === "draining") setStatus("warn", "draining", "The server is draining: it finishes its requests and accepts no new ones.");
  else if (health === "ok") setStatus("good", "serving");
  else setStatus("bad", "not ready", health);
}

function showError(error) {
  if (error instanceof Unauthorized) return askForKey(sessionStorage.getItem(KEY_NAME) !== null);
  const seen = lastSeen ? ` The data shown is from ${clock(lastSeen)}.` : "";
  byId("shown").classList.add("old");
  if (error instanceof RequestFailed) setStatus("bad", "error", `${error.message}.${seen}`);
  else setStatus("bad", "unreachable", `The server cannot be reached.${seen}`);
}

let timer = null;
// Only the latest poll updates the page: the key of an earlier one may have been forgotten.
let lastPoll = 0;

async function poll() {
  clearTimeout(timer);
  const thisPoll = ++lastPoll;
  // While the form is open there is no key to send.
  if (!document.hidden && byId("ask-key").hidden) {
    const responses = Promise.all([read("v1/registry"), read("v1/registry/requests"), readHealth()]);
    const ifLatest = (act) => (value) => (thisPoll === lastPoll ? act(value) : null);
    await responses.then(ifLatest(showAll)).catch(ifLatest(showError));
  }
  if (thisPoll === lastPoll) timer = setTimeout(poll, INTERVAL_MS);
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
