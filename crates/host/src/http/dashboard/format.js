// Figures as people read them, and the page's elements.

const byId = (id) => document.getElementById(id);

// A new element with text in it. Text is never taken for markup.
function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Touches the page only where something changed: with many guests that is what keeps it smooth.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function digits(number) {
  const size = Math.abs(number);
  return number.toFixed(size >= 100 || Number.isInteger(number) ? 0 : size >= 10 ? 1 : 2);
}

function scaled(number, step, units) {
  let at = 0;
  while (Math.abs(number) >= step && at < units.length - 1) {
    number /= step;
    at += 1;
  }
  return `${digits(number)}\u202f${units[at]}`;
}

const formatBytes = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const formatPages = (pages) => formatBytes(pages * 4096);
const formatCount = (count) => count.toLocaleString("en");
const formatPercent = (percent) => `${digits(percent)}\u202f%`;

function formatTime(us) {
  return us < 1000 ? `${digits(us)}\u202fµs` : us < 1e6 ? `${digits(us / 1000)}\u202fms` : `${digits(us / 1e6)}\u202fs`;
}

function formatUptime(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = Math.max(parts.findIndex(([unit]) => seconds >= unit), 0);
  return parts.slice(first, first + 2).map(([unit, name], at) => {
    const whole = at === 0 ? seconds / unit : (seconds % parts[first][0]) / unit;
    return `${Math.floor(whole)} ${name}`;
  }).join(" ");
}

// States that need nobody's attention.
const QUIET_STATES = { running: "", merging: "", idle: "idle", new: "idle", unmerged: "idle" };

function showState(node, state) {
  setText(node, state.name);
  const kind = QUIET_STATES[state.name] ?? "warn";
  if (node.dataset.kind !== kind) {
    node.dataset.kind = kind;
    node.classList.toggle("idle", kind === "idle");
    node.classList.toggle("warn", kind === "warn");
  }
  node.title = state.advice ?? "";
}
