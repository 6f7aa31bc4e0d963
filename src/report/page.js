"use strict";

/* Light and dark: what the system says, until the button says otherwise. */
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const isDark = () => (document.documentElement.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
const timelines = [];

function themeChanged() {
  themeButton.textContent = isDark() ? "Light" : "Dark";
  for (const timeline of timelines) timeline.draw();
}
themeButton.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  themeChanged();
});
systemDark.addEventListener("change", themeChanged);

/* One tip for every mark of every chart. */
const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
}
const hideTip = () => { tip.hidden = true; };
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest("[data-tip]");
  if (mark) showTip(mark.dataset.tip, event.clientX, event.clientY);
  else if (event.target.tagName !== "CANVAS") hideTip();
});
document.addEventListener("scroll", hideTip, { passive: true });

/* Commands. Without permission to write the clipboard the text is selected instead. */
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      getSelection().selectAllChildren(code);
    }
  });
}

/* The engines of a kernel over time: an overview of the whole above a window one can move and zoom. */
class Timeline {
  static OVERVIEW = 9; /* height of a lane in the overview */
  static ROWS_MAX = 4; /* transfers drawn one above the other */
  static ROW = 22;
  static AXIS = 26;
  static FONT = "12px system-ui, sans-serif";

  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.range = figure.querySelector("output");
    const data = JSON.parse(figure.querySelector("script").textContent);
    this.total = data.total_ns;
    this.covered = data.covered_ns;
    this.lanes = data.lanes.map((lane) => this.readLane(lane));
    this.from = 0;
    this.to = this.total;
    this.pointers = new Map();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /* Starts are stored as differences; transfers overlap, so each goes to the first row that is free. */
  readLane(lane) {
    const rowEnd = [];
    let start = 0;
    const events = lane.start.map((difference, i) => {
      start += difference;
      const end = start + lane.length[i];
      let row = rowEnd.findIndex((busyUntil) => busyUntil <= start);
      if (row < 0 && rowEnd.length < Timeline.ROWS_MAX) row = rowEnd.length;
      if (row < 0) row = rowEnd.indexOf(Math.min(...rowEnd));
      rowEnd[row] = Math.max(end, rowEnd[row] || 0);
      return { start, end, what: lane.words[lane.word[i]], row };
    });
    return { name: lane.name, colour: lane.colour, busy: lane.busy, events, rows: Math.max(1, rowEnd.length) };
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / this.plotWidth());
      else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), this.timeAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, { x: event.offsetX, inOverview: event.offsetY < this.overviewHeight() });
      if (event.offsetY < this.overviewHeight()) this.centre(this.overviewTime(event.offsetX));
    });
    canvas.addEventListener("pointermove", (event) => this.pointerMoved(event));
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", (event) => this.zoom(0.25, this.timeAt(event.offsetX)));
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "all" }[event.key];
      if (!act) return;
      event.preventDefault();
      this.act(act);
    });
    for (const button of this.figure.querySelectorAll("button[data-act]"))
      button.addEventListener("click", () => this.act(button.dataset.act));
  }

  act(name) {
    const middle = (this.from + this.to) / 2;
    if (name === "in") this.zoom(0.5, middle);
    if (name === "out") this.zoom(2, middle);
    if (name === "left") this.pan(-0.25);
    if (name === "right") this.pan(0.25);
    if (name === "all") this.show(0, this.total);
  }

  pointerMoved(event) {
    const held = this.pointers.get(event.pointerId);
    if (!held) return this.hover(event);
    hideTip();
    const others = [...this.pointers.entries()].filter(([id]) => id !== event.pointerId);
    const moved = event.offsetX - held.x;
    if (others.length) { /* two fingers: what is under them stays under them */
      const still = others[0][1].x;
      const before = Math.abs(held.x - still), after = Math.abs(event.offsetX - still);
      if (before > 8 && after > 8) this.zoom(before / after, this.timeAt(still));
    } else if (held.inOverview) {
      this.centre(this.overviewTime(event.offsetX));
    } else {
      this.pan(-moved / this.plotWidth());
    }
    held.x = event.offsetX;
  }

  left() { return this.canvas.clientWidth < 520 ? 64 : 76; }
  plotWidth() { return Math.max(1, this.canvas.clientWidth - this.left() - 6); }
  overviewHeight() { return this.lanes.length * Timeline.OVERVIEW + 14; }
  timeAt(x) { return this.from + (x - this.left()) / this.plotWidth() * (this.to - this.from); }
  overviewTime(x) { return (x - this.left()) / this.plotWidth() * this.total; }
  pan(share) { const by = share * (this.to - this.from); this.show(this.from + by, this.to + by); }
  centre(time) { const half = (this.to - this.from) / 2; this.show(time - half, time + half); }

  zoom(factor, around) {
    const fixed = Math.max(0, Math.min(this.total, around));
    this.show(fixed - (fixed - this.from) * factor, fixed + (this.to - fixed) * factor);
  }

  /* Never outside the kernel, never less than 100 ns. */
  show(from, to) {
    const span = Math.max(Math.min(100, this.total), Math.min(this.total, to - from));
    this.from = Math.max(0, Math.min(this.total - span, from));
    this.to = this.from + span;
    hideTip();
    this.draw();
  }

  hover(event) {
    const hit = this.eventAt(event.offsetX, event.offsetY);
    if (!hit) return hideTip();
    const length = hit.end - hit.start;
    showTip(`${hit.what}\nstarts at ${(hit.start / 1000).toFixed(3)} µs\ntakes ${(length / 1000).toFixed(3)} µs`, event.clientX, event.clientY);
  }

  eventAt(x, y) {
    const slack = 1.5 / this.plotWidth() * (this.to - this.from), time = this.timeAt(x);
    let top = this.overviewHeight();
    for (const lane of this.lanes) {
      const height = this.laneHeight(lane);
      if (y >= top && y < top + height) {
        const row = Math.floor((y - top - 4) / this.rowHeight(lane));
        return lane.events.find((e) => e.row === row && e.start - slack <= time && e.end + slack >= time);
      }
      top += height;
    }
    return undefined;
  }

  rowHeight(lane) { return lane.rows > 1 ? 13 : Timeline.ROW; }
  laneHeight(lane) { return lane.rows * this.rowHeight(lane) + 8; }

  draw() {
    const canvas = this.canvas, width = canvas.clientWidth;
    const height = this.overviewHeight() + this.lanes.reduce((sum, lane) => sum + this.laneHeight(lane), 0) + Timeline.AXIS;
    const sharp = devicePixelRatio || 1;
    if (!width) return;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.height = height + "px";
    this.pen = canvas.getContext("2d");
    this.pen.scale(sharp, sharp);
    this.pen.font = Timeline.FONT;
    this.ink = this.colour("--ink");
    this.soft = this.colour("--soft");
    this.line = this.colour("--grid");
    this.drawOverview();
    this.drawLanes();
    const format = (ns) => (ns / 1000).toFixed(this.to - this.from < 20000 ? 2 : 1);
    this.range.textContent = `${format(this.from)} to ${format(this.to)} of ${(this.total / 1000).toFixed(1)} µs`;
    this.figure.dataset.from = this.from;
    this.figure.dataset.to = this.to;
  }

  /* A colour of the style sheet as the canvas understands it. */
  colour(name) {
    this.canvas.style.color = `var(${name})`;
    return getComputedStyle(this.canvas).color;
  }

  drawBusy(lane, top, height, from, to, after) {
    const bins = lane.busy.length, scale = this.plotWidth() / (to - from);
    this.pen.fillStyle = this.colour(lane.colour);
    for (let i = 0; i < bins; i++) {
      const begin = i * this.total / bins, end = (i + 1) * this.total / bins;
      if (!lane.busy[i] || end < from || begin > to || begin < after) continue;
      this.pen.globalAlpha = lane.busy[i] / 100;
      const x = Math.round(this.left() + (begin - from) * scale); /* whole pixels: a shade means what it says */
      this.pen.fillRect(x, top, Math.round(this.left() + (end - from) * scale) - x, height);
    }
    this.pen.globalAlpha = 1;
  }

  drawOverview() {
    const pen = this.pen, left = this.left(), width = this.plotWidth(), bottom = this.overviewHeight() - 10;
    this.lanes.forEach((lane, i) => this.drawBusy(lane, i * Timeline.OVERVIEW + 1, Timeline.OVERVIEW - 2, 0, this.total, 0));
    pen.strokeStyle = this.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(left + this.from / this.total * width, 0.75, Math.max(3, (this.to - this.from) / this.total * width), bottom);
    pen.fillStyle = this.soft;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillText("overview", left - 8, bottom / 2);
  }

  drawAxis(top, bottom) {
    const pen = this.pen, span = (this.to - this.from) / 1000, wanted = this.canvas.clientWidth < 520 ? 4 : 8;
    const power = 10 ** Math.floor(Math.log10(span / wanted)), rest = span / wanted / power;
    const step = power * (rest > 5 ? 10 : rest > 2 ? 5 : rest > 1 ? 2 : 1);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (let k = Math.ceil(this.from / 1000 / step - 1e-9); k * step <= this.to / 1000 + 1e-9; k++) {
      const x = this.left() + (k * step * 1000 - this.from) / (this.to - this.from) * this.plotWidth();
      pen.fillStyle = this.line;
      pen.fillRect(x, top, 1, bottom - top);
      pen.fillStyle = this.soft;
      const half = pen.measureText((k * step).toFixed(digits)).width / 2;
      pen.fillText((k * step).toFixed(digits), Math.min(x, this.canvas.clientWidth - half - 2), bottom + 7);
    }
    pen.textAlign = "right";
    pen.fillText("µs", this.left() - 26, bottom + 7);
  }

  drawLanes() {
    const pen = this.pen, left = this.left(), scale = this.plotWidth() / (this.to - this.from);
    let top = this.overviewHeight();
    this.drawAxis(top, top + this.lanes.reduce((sum, lane) => sum + this.laneHeight(lane), 0));
    for (const lane of this.lanes) {
      const height = this.laneHeight(lane);
      pen.fillStyle = this.ink;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(lane.name, left - 8, top + height / 2);
      pen.save();
      pen.beginPath();
      pen.rect(left, top, this.plotWidth(), height);
      pen.clip();
      this.drawEvents(lane, top, scale);
      if (this.covered < this.to) this.drawBusy(lane, top + 4, height - 8, this.from, this.to, this.covered);
      pen.restore();
      top += height;
    }
  }

  /* Blocks one can see are drawn one by one; thinner ones as the share of each pixel they fill. */
  drawEvents(lane, top, scale) {
    const pen = this.pen, left = this.left(), rowHeight = this.rowHeight(lane), shades = [1, 0.72];
    const filled = Array.from({ length: lane.rows }, () => new Float32Array(this.plotWidth() + 2));
    pen.font = rowHeight < Timeline.ROW ? "10px system-ui, sans-serif" : Timeline.FONT;
    pen.fillStyle = this.colour(lane.colour);
    lane.events.forEach((event, i) => {
      if (event.end < this.from || event.start > this.to) return;
      const x = (event.start - this.from) * scale, end = (event.end - this.from) * scale;
      if (end - x < 2) {
        for (let k = Math.max(0, Math.floor(x)); k < Math.min(end, this.plotWidth()); k++)
          filled[event.row][k] += Math.min(end, k + 1) - Math.max(x, k);
        return;
      }
      const y = top + 4 + event.row * rowHeight;
      pen.globalAlpha = shades[i % 2];
      pen.fillRect(left + x, y, end - x - 0.6, rowHeight - 2);
      pen.globalAlpha = 1;
      if (end - x > 60) this.label(event.what, left + Math.max(x, 0) + 5, y + rowHeight / 2 - 1, left + end);
    });
    filled.forEach((row, k) => row.forEach((share, x) => {
      if (share === 0) return;
      pen.globalAlpha = Math.max(0.15, Math.min(1, share));
      pen.fillRect(left + x, top + 4 + k * rowHeight, 1, rowHeight - 2);
    }));
    pen.globalAlpha = 1;
    pen.font = Timeline.FONT;
  }

  label(text, x, y, right) {
    const pen = this.pen, fill = pen.fillStyle;
    if (pen.measureText(text).width > right - x - 5) return;
    pen.fillStyle = isDark() ? "#0f1217" : "#ffffff";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(text, x, y);
    pen.fillStyle = fill;
  }
}

for (const figure of document.querySelectorAll("figure.timeline")) timelines.push(new Timeline(figure));
themeChanged();
