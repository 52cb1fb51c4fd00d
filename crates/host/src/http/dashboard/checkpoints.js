// Checkpoints: a lane for each guest, all on one time line, and the jobs that go on.

const LANE_CHECKPOINTS = 48;

const JOB_WORDS = {
  "checkpoint-create": "Creating", "checkpoint-restore": "Restoring", "checkpoint-verify": "Verifying",
  "checkpoint-delete": "Deleting", "checkpoint-export": "Exporting", "checkpoint-import": "Importing",
};

const LANE_KEYS = [["own", "unshared"], ["shared", "zero"], ["pause", "hot"]];

const lanes = new Map();
const timeLine = { from: 0, to: 1 };
let lastCheckpoints = [];

const atMs = (checkpoint) => checkpoint.time_ns / 1e6;

class Lane {
  constructor(first) {
    const [node, top, facts] = [element("article", "lane"), element("div", "top"), element("div", "facts")];
    [this.left, this.right] = [element("span"), element("span")];
    const owner = first.uid === null ? first.domain : `${first.domain}, user ${first.uid}`;
    top.append(element("span", "name", first.guest), element("span", "dim domain", owner));
    facts.append(this.left, this.right);
    this.canvas = element("canvas", "time-line");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("keydown", (event) => this.step(event));
    node.append(top, facts, this.canvas);
    Object.assign(this, { node, guest: first.guest, kept: [], at: null });
  }

  set(kept) {
    this.kept = kept;
    if (this.at !== null && this.at >= kept.length) this.leave();
    const last = kept[kept.length - 1];
    const own = kept.reduce((sum, checkpoint) => sum + checkpoint.own_bytes, 0);
    const count = kept.length < LANE_CHECKPOINTS ? `${kept.length}` : `the last ${kept.length}`;
    const pause = last.pause_us === null ? "" : `, paused ${formatTime(last.pause_us)}`;
    setText(this.left, `${count}, own ${formatBytes(own)}`);
    setText(this.right, `last ${formatAgo(atMs(last))}${pause}`);
    const label = `Checkpoints of ${this.guest}: ${kept.length}, own ${formatBytes(own)}; arrow keys move from one to the next`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    this.draw();
  }

  x(checkpoint, width) {
    return 7 + ((atMs(checkpoint) - timeLine.from) / (timeLine.to - timeLine.from)) * (width - 14);
  }

  draw() {
    const { context, width, height } = fitCanvas(this.canvas);
    if (width === 0 || this.kept.length === 0) return;
    const [floor, base] = [height - 44, height - 17];
    const [tallest, longest] = [floor - 14, base - floor - 9];
    const most = Math.max(...this.kept.map((checkpoint) => checkpoint.stored_bytes), 1);
    const pause = Math.max(...this.kept.map((checkpoint) => checkpoint.pause_us ?? 0), 1);
    const bar = Math.max(2, Math.min(9, (width - 14) / LANE_CHECKPOINTS - 1));
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    for (const y of [floor, base]) this.rule(context, width, y);
    this.kept.forEach((checkpoint, at) => {
      const x = this.x(checkpoint, width);
      const [own, all] = [checkpoint.own_bytes, checkpoint.stored_bytes].map((bytes) => (bytes / most) * tallest);
      context.globalAlpha = this.at === null || this.at === at ? 1 : 0.45;
      context.fillStyle = palette.zero;
      context.fillRect(x - bar / 2, floor - all, bar, all);
      context.fillStyle = palette.unshared;
      context.fillRect(x - bar / 2, floor - Math.max(own, 1), bar, Math.max(own, 1));
      if (checkpoint.pause_us === null) return;
      const y = base - (checkpoint.pause_us / pause) * longest;
      context.fillStyle = palette.hot;
      context.fillRect(x - 0.5, y, 1, base - y);
      context.beginPath();
      context.arc(x, y, 2.5, 0, 2 * Math.PI);
      context.fill();
    });
    context.globalAlpha = 1;
    this.words(context, 2, floor - tallest - 3, formatBytes(most), "left");
    if (pause > 1) this.words(context, 2, floor + 12, formatTime(pause), "left");
    this.words(context, 2, height - 4, formatAgo(timeLine.from), "left");
    this.words(context, width - 2, height - 4, "now", "right");
  }

  rule(context, width, y) {
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(0, Math.round(y) + 0.5);
    context.lineTo(width, Math.round(y) + 0.5);
    context.stroke();
  }

  // Readable where a bar is behind it, too.
  words(context, x, y, text, align) {
    [context.textAlign, context.fillStyle, context.strokeStyle, context.lineWidth] = [align, palette.dim, palette.panel, 3];
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
  }

  point(event) {
    const far = this.kept.map((checkpoint) => Math.abs(this.x(checkpoint, this.canvas.clientWidth) - event.offsetX));
    this.show(far.indexOf(Math.min(...far)), event.clientX, event.clientY);
  }

  step(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(this.kept.length - 1, (this.at ?? this.kept.length) + way));
    const box = this.canvas.getBoundingClientRect();
    this.show(at, box.left + this.x(this.kept[at], box.width), box.top);
  }

  show(at, x, y) {
    this.at = at;
    const checkpoint = this.kept[at];
    const rows = [
      ["made", new Date(atMs(checkpoint)).toLocaleString("en", { dateStyle: "medium", timeStyle: "medium" })],
      ["memory", formatBytes(checkpoint.memory_bytes)],
      ["own", formatBytes(checkpoint.own_bytes), "unshared"],
      ["shared", formatBytes(checkpoint.shared_bytes), "zero"],
      ["written", formatBytes(checkpoint.written_bytes)],
      ["pause", checkpoint.pause_us === null ? "–" : formatTime(checkpoint.pause_us), "hot"],
      ["rounds before", checkpoint.rounds === null ? "–" : formatCount(checkpoint.rounds)],
    ];
    showTip(x, y, `${checkpoint.guest}@${checkpoint.name}`, rows);
    this.draw();
  }

  leave() {
    if (this.at === null) return;
    this.at = null;
    hideTip();
    this.draw();
  }
}

function formatAgo(time_ms) {
  const seconds = Math.max(0, Math.round((Date.now() - time_ms) / 1000));
  return seconds === 0 ? "now" : `${formatUptime(seconds)} ago`;
}

function showCheckpoints(checkpoints) {
  lastCheckpoints = checkpoints;
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const isWanted = ({ guest, domain }) => words.every((word) => `${guest} ${domain}`.toLowerCase().includes(word));
  const wanted = checkpoints.filter(isWanted);
  const byGuest = Map.groupBy(wanted, ({ uid, domain, guest }) => JSON.stringify([guest, domain, uid]));
  timeLine.to = Math.max(Date.now(), ...wanted.slice(-1).map(atMs));
  timeLine.from = Math.min(timeLine.to - 60_000, ...wanted.slice(0, 1).map(atMs));
  const gone = new Set(lanes.keys());
  const list = byId("lanes");
  [...byGuest.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).forEach((key, at) => {
    gone.delete(key);
    const lane = lanes.get(key) ?? new Lane(byGuest.get(key)[0]);
    lanes.set(key, lane);
    if (list.children[at] !== lane.node) list.insertBefore(lane.node, list.children[at] ?? null);
    lane.set(byGuest.get(key));
  });
  for (const key of gone) {
    lanes.get(key).node.remove();
    lanes.delete(key);
  }
  setText(byId("kept-count"), `of ${byGuest.size} guests`);
  byId("kept").hidden = byGuest.size === 0;
  // Only now their places have a size.
  for (const lane of lanes.values()) lane.draw();
}

function showJobs(jobs) {
  const list = byId("jobs");
  jobs.forEach((job, at) => {
    let row = list.children[at];
    if (!row) {
      row = list.appendChild(element("li", "job"));
      row.append(element("span", "name"), element("progress"), element("span", "dim"));
    }
    const [name, bar, facts] = row.children;
    setText(name, `${JOB_WORDS[job.kind] ?? job.kind} ${job.subject}`);
    bar.setAttribute("aria-label", name.textContent);
    if (job.total === null) bar.removeAttribute("value");
    else [bar.max, bar.value] = [job.total, job.done];
    const phase = job.is_cancelled ? "ending" : job.phase;
    const part = job.total === null ? "" : `, ${formatPercent(Math.floor((job.done / job.total) * 100))}`;
    setText(facts, `${phase}${part}, for ${formatTime(job.elapsed_ms * 1000)}`);
  });
  while (list.children.length > jobs.length) list.lastChild.remove();
  list.hidden = jobs.length === 0;
}

async function refreshCheckpoints() {
  const [checkpoints, jobs] = await Promise.all([ask(`checkpoints?latest=${LANE_CHECKPOINTS}`), ask("jobs")]);
  showCheckpoints(checkpoints);
  showJobs(jobs);
}
