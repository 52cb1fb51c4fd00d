// Lines over the last ten minutes, one figure to a tile.

const SPAN_MS = [60_000, 600_000];
const charts = [];

let palette = {};

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "dim", "line", "panel", "merged", "zero", "unshared", "unknown", "hot"]) {
    palette[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

// Sets a canvas to the pixels of its place; returns the drawing context and its size in CSS pixels.
function fitCanvas(canvas) {
  const scale = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

// Round values for an axis that covers `low` to `high`: at most four.
function ticks(low, high, base) {
  const rough = Math.max((high - low) / 3, base === 1024 ? 1 : 1e-9);
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const steps = base === 1024 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1, 2, 5, 10];
  const step = steps.map((factor) => factor * power).find((size) => size >= rough) ?? rough;
  const first = Math.floor(low / step) * step;
  const values = [];
  for (let value = first; value < high + step; value += step) values.push(value);
  return values;
}

class Chart {
  // `lines` are [name, colour, (samples) => values, style]; values may be null.
  constructor(tile, title, format, base, lines) {
    Object.assign(this, { format, base, lines, at: null, samples: null });
    const caption = element("figcaption");
    const keys = element("span");
    if (lines.length > 1) {
      for (const [name, colour] of lines) {
        const key = element("span", "key", name);
        key.style.setProperty("--key", `var(--${colour})`);
        keys.append(key);
      }
    }
    caption.append(element("span", "", title), keys);
    [this.value, this.note] = [element("div", "value", "–"), element("div", "note")];
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${title}, the last ten minutes`);
    tile.append(caption, this.value, this.note, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX, event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("keydown", (event) => this.step(event));
    charts.push(this);
  }

  set(samples) {
    this.samples = samples;
    this.values = this.lines.map(([, , values]) => values(samples));
    this.draw();
  }

  // How much time is shown: all that is known, within bounds.
  span() {
    const times = this.samples.time_ms;
    return Math.min(SPAN_MS[1], Math.max(SPAN_MS[0], times[times.length - 1] - times[0]));
  }

  x(at, width) {
    const times = this.samples.time_ms;
    return width - 1 - ((times[times.length - 1] - times[at]) / this.span()) * (width - 1);
  }

  draw() {
    const { context, width, height } = fitCanvas(this.canvas);
    const count = this.samples?.time_ms.length ?? 0;
    if (count === 0 || width === 0) return;
    const all = this.values.flat().filter((value) => value !== null);
    const [least, most] = [Math.min(0, ...all), Math.max(...all, this.base === 1024 ? 4096 : 1e-6)];
    // A little below zero, as before anything is merged, is not worth half of the picture.
    const marks = ticks(-least < most / 20 ? 0 : least, most, this.base);
    const [low, high] = [marks[0], marks[marks.length - 1]];
    const y = (value) => height - 4 - ((value - low) / (high - low)) * (height - 18);
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.lineWidth = 1;
    for (const mark of marks) {
      context.strokeStyle = palette.line;
      context.beginPath();
      context.moveTo(0, Math.round(y(mark)) + 0.5);
      context.lineTo(width, Math.round(y(mark)) + 0.5);
      context.stroke();
    }
    this.lines.forEach(([, colour, , style], line) => this.drawLine(context, width, y, this.values[line], palette[colour], style));
    context.fillStyle = palette.dim;
    context.strokeStyle = palette.panel;
    context.lineWidth = 3;
    for (const mark of marks.slice(1)) {
      // Readable where a line goes through it, too.
      context.strokeText(this.format(mark), 2, Math.round(y(mark)) - 3);
      context.fillText(this.format(mark), 2, Math.round(y(mark)) - 3);
    }
    context.lineWidth = 1;
    if (this.at !== null) {
      const x = Math.round(this.x(Math.min(this.at, count - 1), width)) + 0.5;
      context.strokeStyle = palette.dim;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height);
      context.stroke();
    }
  }

  drawLine(context, width, y, values, colour, style) {
    context.save();
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    if (style === "dashed") context.setLineDash([5, 4]);
    context.beginPath();
    let first = null, last = null;
    values.forEach((value, at) => {
      if (value === null) return;
      const x = this.x(at, width);
      if (first === null) { context.moveTo(x, y(value)); first = x; } else context.lineTo(x, y(value));
      last = x;
    });
    context.stroke();
    if (style === "filled" && first !== null) {
      context.lineTo(last, y(0));
      context.lineTo(first, y(0));
      context.globalAlpha = 0.14;
      context.fill();
    }
    context.restore();
  }

  point(x, event) {
    const times = this.samples?.time_ms ?? [];
    if (times.length === 0) return;
    const time = times[times.length - 1] - (1 - x / this.canvas.clientWidth) * this.span();
    let at = times.findIndex((sample) => sample >= time);
    if (at < 0) at = times.length - 1;
    this.show(at, event.clientX, event.clientY);
  }

  step(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const count = this.samples?.time_ms.length ?? 0;
    if (!way || count === 0) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(count - 1, (this.at ?? count) + way * (event.shiftKey ? 10 : 1)));
    const box = this.canvas.getBoundingClientRect();
    this.show(at, box.left + this.x(at, box.width), box.top);
  }

  show(at, x, y) {
    this.at = at;
    const times = this.samples.time_ms;
    const ago = Math.round((times[times.length - 1] - times[at]) / 1000);
    const rows = this.lines.map(([name, colour], line) => {
      const value = this.values[line][at];
      return [name, value === null ? "–" : this.format(value), colour];
    });
    showTip(x, y, ago === 0 ? "now" : `${formatUptime(ago)} ago`, rows);
    this.draw();
  }

  leave() {
    this.at = null;
    hideTip();
    this.draw();
  }
}

// What grew by how much for each second, in percent of one CPU, over some samples so that work done in
// bursts is seen as its mean.
function cpuPercent(times, sums) {
  return sums.map((sum, at) => {
    const from = Math.max(0, at - 10);
    const elapsed = times[at] - times[from];
    return elapsed > 0 ? Math.max(0, ((sum - sums[from]) / elapsed) * 100) : null;
  });
}
