// A guest's memory: a square for so many pages, in the colours of what they are.

const KINDS = [
  ["merged", "merged", "mapped from a canonical page"],
  ["zero", "zero", "the kernel's zero page"],
  ["unshared", "private", "looked at, and found unique"],
  ["unknown", "other", "absent, changing, or still to be looked at"],
];

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

class MemoryMap {
  // Of about so many cells, in squares of `largest` pixels at most, `tallest` pixels high if it can be.
  constructor(canvas, cells, largest, tallest) {
    Object.assign(this, { canvas, cells, largest, tallest, map: null, at: null, columns: 1 });
    this.image = document.createElement("canvas");
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("blur", () => this.leave());
    canvas.addEventListener("keydown", (event) => this.step(event));
  }

  set(map) {
    this.map = map;
    this.paint();
    this.draw();
    if (this.at !== null) this.show();
  }

  // How many squares are side by side, and how large they are, in pixels of the screen.
  layout() {
    const width = this.canvas.clientWidth;
    const scale = devicePixelRatio || 1;
    const count = Math.max(1, this.map?.merged.length ?? this.cells);
    const target = Math.max(6, Math.min(this.largest, Math.sqrt((width * this.tallest) / count)));
    this.columns = Math.max(1, Math.min(count, Math.floor(width / target)));
    this.size = Math.max(1, (width * scale) / this.columns);
    this.rows = Math.ceil(count / this.columns);
    const height = Math.round(this.rows * this.size) / scale;
    if (this.canvas.style.height !== `${height}px`) this.canvas.style.height = `${height}px`;
  }

  // One pixel for each cell; drawn larger afterwards, without smoothing.
  paint() {
    this.layout();
    const { map, columns, rows } = this;
    [this.image.width, this.image.height] = [columns, rows];
    const context = this.image.getContext("2d");
    const pixels = context.createImageData(columns, rows);
    const colours = KINDS.map(([kind]) => channels(palette[kind]));
    const hot = channels(palette.hot);
    for (let cell = 0; cell < map.merged.length; cell += 1) {
      const parts = KINDS.map(([kind]) => map[kind][cell]);
      const pages = Math.max(1, parts[0] + parts[1] + parts[2] + parts[3]);
      const heat = 0.9 * Math.sqrt(Math.min(1, map.hot[cell] / pages));
      for (let channel = 0; channel < 3; channel += 1) {
        let value = 0;
        for (let part = 0; part < 4; part += 1) value += (parts[part] / pages) * colours[part][channel];
        pixels.data[cell * 4 + channel] = value + (hot[channel] - value) * heat;
      }
      pixels.data[cell * 4 + 3] = 255;
    }
    context.putImageData(pixels, 0, 0);
  }

  draw() {
    if (!this.map) return;
    const scale = devicePixelRatio || 1;
    const [w, h] = [Math.round(this.canvas.clientWidth * scale), Math.round(this.rows * this.size)];
    if (this.canvas.width !== w || this.canvas.height !== h) [this.canvas.width, this.canvas.height] = [w, h];
    const context = this.canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, w, h);
    context.drawImage(this.image, 0, 0, w, h);
    if (this.at !== null) {
      const [x, y] = [this.at % this.columns, Math.floor(this.at / this.columns)].map((at) => Math.floor(at * this.size));
      context.strokeStyle = palette.ink;
      context.lineWidth = Math.max(1, Math.round(1.5 * scale));
      context.strokeRect(x + 0.5, y + 0.5, this.size - 1, this.size - 1);
    }
  }

  // Anew, in other colours or in another place.
  redraw() {
    if (!this.map) return;
    this.paint();
    this.draw();
  }

  point(event) {
    if (!this.map) return;
    const scale = devicePixelRatio || 1;
    const column = Math.floor((event.offsetX * scale) / this.size);
    const row = Math.floor((event.offsetY * scale) / this.size);
    const cell = row * this.columns + column;
    if (column >= this.columns || cell >= this.map.merged.length || cell < 0) return this.leave();
    this.at = cell;
    this.draw();
    this.show();
  }

  step(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
    if (!way || !this.map) return;
    event.preventDefault();
    const last = this.map.merged.length - 1;
    this.at = this.at === null ? 0 : Math.max(0, Math.min(last, this.at + way));
    this.draw();
    this.show();
  }

  show() {
    const { map } = this;
    this.at = Math.min(this.at, map.merged.length - 1);
    const region = map.regions.findLast((region) => region.first_cell <= this.at);
    if (!region) return;
    const first = (this.at - region.first_cell) * map.cell_pages;
    const pages = Math.min(map.cell_pages, region.pages - first);
    const start = BigInt(region.address) + BigInt(first) * BigInt(map.page_bytes);
    const end = start + BigInt(pages) * BigInt(map.page_bytes);
    const rows = KINDS.filter(([kind]) => map[kind][this.at] > 0)
      .map(([kind, name]) => [name, pageCount(map[kind][this.at], pages), kind]);
    if (map.hot[this.at] > 0) rows.push(["written lately", pageCount(map.hot[this.at], pages), "hot"]);
    const box = this.canvas.getBoundingClientRect();
    const scale = devicePixelRatio || 1;
    const x = box.left + (((this.at % this.columns) + 0.5) * this.size) / scale;
    const y = box.top + ((Math.floor(this.at / this.columns) + 0.5) * this.size) / scale;
    const where = `${start.toString(16)}–${end.toString(16)}  ${formatBytes(pages * map.page_bytes)}`;
    showTip(x, y, where, rows);
  }

  leave() {
    if (this.at === null) return;
    this.at = null;
    hideTip();
    this.draw();
  }
}

function pageCount(count, of) {
  return `${count} of ${of} pages`;
}

function legendInto(node) {
  for (const [kind, name, meaning] of [...KINDS, ["hot", "written lately", "within the last seconds, as far as it was asked about"]]) {
    const key = element("span", "key", name);
    key.style.setProperty("--key", `var(--${kind})`);
    key.title = meaning;
    node.append(key);
  }
}
