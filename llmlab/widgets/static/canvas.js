// A scene on a canvas: pointing, keeping, walking by keys, and telling the kernel of it.

const MARGIN = 12; // around the scene, as in panel.css
const WIDTH_STEP = 40; // the kernel is asked for another width only when it differs by this much
const ANNOUNCE_MS = 5000; // a screen reader is not told of every step
const OF_A_REQUEST = ["position", "block", "wire"]; // as in llmlab.widgets.selection

class CanvasPanel {
  constructor(model, el, palette) {
    Object.assign(this, { model, palette, scene: null, hover: null, pointer: null, preview: null });
    this.id = Math.random().toString(36).slice(2);
    this.isVisible = true;
    this.draws = 0;
    this.updated = performance.now();
    this.announced = -ANNOUNCE_MS;
    this.stops = new AbortController();
    this.build(el);
    this.listen();
    this.follow();
    this.receive();
  }

  build(el) {
    this.root = element("section", "llmlab-panel", el);
    const header = element("header", "llmlab-header", this.root);
    this.badge = element("strong", "llmlab-badge", header);
    this.title = element("span", "llmlab-title", header);
    this.hint = element("span", "llmlab-hint", header);
    this.frame = element("div", "llmlab-frame", this.root);
    this.canvas = element("canvas", "llmlab-canvas", this.frame);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.tip = element("div", "llmlab-tip", this.frame);
    this.tip.hidden = true;
    this.notes = element("div", "llmlab-notes", this.root);
    this.status = element("footer", "llmlab-status", this.root);
    this.summary = element("div", "llmlab-summary", this.root);
    this.summary.setAttribute("aria-live", "polite");
  }

  listen() {
    const options = { signal: this.stops.signal };
    const on = (target, name, act) => target.addEventListener(name, act.bind(this), options);
    on(this.canvas, "pointermove", this.onMove);
    on(this.canvas, "pointerleave", this.onLeave);
    on(this.canvas, "click", this.onClick);
    on(this.canvas, "keydown", this.onKey);
    on(this.canvas, "focus", () => this.announce(this.scene?.alt ?? ""));
    on(this.canvas, "blur", this.onLeave);
    on(window, "llmlab-hover", this.onOther);
  }

  follow() {
    const { signal } = this.stops;
    const handlers = {
      "change:scene": () => this.receive(),
      "change:selection": () => this.onSelection(),
      "change:status": () => this.tell(),
    };
    followModel(this.model, handlers, signal);
    followTheme(this.root, this.palette, (theme) => this.onTheme(theme), signal);
    followSight(this.root, this.id, (isVisible) => this.onSight(isVisible), signal);
    const sizes = new ResizeObserver(() => this.onSize());
    sizes.observe(this.frame);
    const timer = setInterval(() => this.isVisible && this.tell(), 1000);
    signal.addEventListener("abort", () => (sizes.disconnect(), clearInterval(timer)));
  }

  send(message) {
    try {
      this.model.send(message);
    } catch {
      this.problem = "the kernel is not reachable: run the cell again";
      this.tell();
    }
  }

  // -- what comes from the kernel

  async receive() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const scene = await unpack(this.model.get("scene"));
      if (turn !== this.turn || !scene) return; // a newer one is on its way
      this.scene = scene;
      this.problem = "";
    } catch (error) {
      this.problem = `this picture could not be read: ${error.message}`;
    }
    this.updated = performance.now();
    this.label();
    this.tell();
    this.pointAgain();
    this.schedule();
  }

  label() {
    const { name = "", title = "", notes = [], alt = "", simulated = false } = this.scene ?? {};
    this.root.dataset.name = name;
    this.badge.textContent = simulated ? "SIMULATED" : "";
    this.badge.hidden = !simulated;
    this.title.textContent = title;
    this.notes.replaceChildren();
    for (const note of notes) element("p", "llmlab-note", this.notes).textContent = note;
    this.canvas.setAttribute("aria-label", `${simulated ? "SIMULATED: " : ""}${title}. ${alt}`);
    if (document.activeElement === this.canvas && performance.now() - this.announced > ANNOUNCE_MS) this.announce(alt);
  }

  onSelection() {
    this.kept = null;
    this.schedule();
    this.tell();
  }

  get selection() {
    return this.kept ?? this.model.get("selection") ?? {};
  }

  tell() {
    const { state = "", error = "", lost = 0 } = this.model.get("status") ?? {};
    const problem = error || this.problem;
    const seconds = Math.round((performance.now() - this.updated) / 1000);
    const isMoving = state === "live" || state === "paused";
    const parts = [state, isMoving && (seconds > 1 ? `updated ${seconds} s ago` : "up to date")];
    if (lost) parts.push(`${lost} events were lost before they could be read`);
    this.status.textContent = (problem ? `⚠ ${problem} — ` : "") + parts.filter(Boolean).join(" · ");
    this.status.classList.toggle("llmlab-alarm", Boolean(problem));
    this.root.dataset.error = problem ?? "";
    const kept = words(this.selection);
    this.hint.textContent = kept ? `kept: ${kept} (Esc to clear)` : "hover to preview, click to keep";
    this.root.dataset.selection = JSON.stringify(this.selection);
  }

  announce(text) {
    this.announced = performance.now();
    this.summary.textContent = text;
  }

  // -- page

  onTheme(theme) {
    this.theme = theme;
    this.schedule();
  }

  onSize() {
    const width = Math.floor(this.frame.clientWidth - 2 * MARGIN);
    if (width > 0 && Math.abs(width - (this.asked ?? 0)) >= WIDTH_STEP) {
      this.asked = width;
      this.send({ type: "width", width });
    }
    this.schedule();
  }

  onSight(isVisible) {
    this.isVisible = isVisible;
    this.send({ type: "visible", view: this.id, visible: isVisible });
    this.schedule();
  }

  // -- pointing

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = box.width / this.scene.w;
    return [(event.clientX - box.left) / scale, (event.clientY - box.top) / scale];
  }

  onMove(event) {
    if (!this.scene) return;
    this.pointer = this.at(event);
    this.point(this.under(this.pointer));
  }

  onLeave() {
    this.pointer = null;
    this.point(null);
  }

  under(pointer) {
    return hit(this.canvas.getContext("2d"), this.scene, ...pointer);
  }

  // The picture changed under the pointer, or the mark that was walked to has moved.
  pointAgain() {
    if (!this.hover || !this.scene) return;
    if (this.pointer) return this.point(this.under(this.pointer));
    const before = JSON.stringify(this.hover.key);
    const mark = this.scene.marks.find((m) => m.key && JSON.stringify(keyOf(this.scene, m.key)) === before);
    this.point(mark ? this.found(mark) : null);
  }

  found(mark) {
    const box = bounds(this.canvas.getContext("2d"), mark);
    return { key: keyOf(this.scene, mark.key), tip: mark.tip, box };
  }

  point(found) {
    if (!found && !this.hover) return;
    this.hover = found;
    this.share(found?.key ?? null);
    this.showTip();
    this.schedule();
  }

  share(key) {
    const detail = { group: this.model.get("group"), from: this.id, key };
    window.dispatchEvent(new CustomEvent("llmlab-hover", { detail }));
  }

  onOther({ detail }) {
    if (detail.from === this.id || detail.group !== this.model.get("group")) return;
    this.preview = detail.key;
    this.schedule();
  }

  showTip() {
    const found = this.hover;
    const text = found ? found.tip || words(found.key) : "";
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    const scale = this.canvas.clientWidth / this.scene.w;
    const [x, y, w, h] = found.box.map((number) => number * scale);
    const right = this.frame.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(Math.min(x + w / 2 - this.tip.offsetWidth / 2 + MARGIN, right), 4)}px`;
    const above = y - this.tip.offsetHeight - 2;
    this.tip.style.top = `${above >= 0 ? above : Math.min(y + h + 6, this.canvas.clientHeight)}px`;
    if (document.activeElement === this.canvas) this.announce(text);
  }

  onClick(event) {
    if (!this.scene) return;
    const found = this.under(this.at(event));
    if (found && Object.keys(found.key).length) this.pick(found.key);
  }

  pick(key) {
    const before = { ...this.selection };
    if (key.request != null && key.request !== before.request) OF_A_REQUEST.forEach((field) => delete before[field]);
    this.kept = { ...before, ...key };
    this.send({ type: "pick", key });
    this.announce(`kept ${words(key)}`);
    this.tell();
    this.schedule();
  }

  clear() {
    this.kept = {};
    this.send({ type: "clear" });
    this.point(null);
    this.tell();
    this.schedule();
  }

  onKey(event) {
    if (!this.scene || event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowRight: () => this.go(1, 0),
      ArrowDown: () => this.go(0, 1),
      ArrowLeft: () => this.go(-1, 0),
      ArrowUp: () => this.go(0, -1),
      "[": () => this.changeLayer(-1),
      "]": () => this.changeLayer(1),
      Enter: () => this.hover && this.pick(this.hover.key),
      Escape: () => this.clear(),
    };
    if (!(event.key in acts)) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own meaning for these
    acts[event.key]();
  }

  go(across, down) {
    const { field, marks } = walk(this.scene, this.selection);
    const grid = mainGrid(this.scene);
    if (grid) this.goInGrid(grid, across, down);
    else if (marks.length) this.goTo(field, marks, across || down);
  }

  // A cell is walked to even when nothing was recorded in it, so that arrows do not get stuck.
  goInGrid(grid, across, down) {
    const { column, row } = this.cell ?? { column: -across, row: -down };
    const within = (number, count) => Math.min(Math.max(number, 0), count - 1);
    this.cell = { column: within(column + across, grid.columns), row: within(row + down, grid.rows) };
    const place = [grid.x + (this.cell.column + 0.5) * grid.cw, grid.y + (this.cell.row + 0.5) * grid.ch];
    this.pointer = null;
    this.point(cellAt(this.scene, grid, ...place));
  }

  goTo(field, marks, by) {
    const current = this.hover?.key[field] ?? this.selection[field];
    let place = marks.findIndex((m) => keyOf(this.scene, m.key)[field] === current);
    if (place < 0) place = by > 0 ? -1 : marks.length;
    const mark = marks[Math.min(Math.max(place + by, 0), marks.length - 1)];
    this.pointer = null;
    this.point(this.found(mark));
  }

  changeLayer(by) {
    const layers = [...new Set(this.scene.keys.map((key) => key.layer).filter((layer) => layer != null))];
    const current = this.selection.layer ?? Math.min(...layers);
    if (Number.isFinite(current) && current + by >= 0) this.pick({ layer: current + by });
  }

  // -- drawing

  schedule() {
    if (this.waits || !this.isVisible) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.draw();
    });
  }

  draw() {
    const { scene, theme, canvas } = this;
    const room = this.frame.clientWidth - 2 * MARGIN;
    if (!scene || room <= 0) return;
    const scale = Math.min(1, room / scene.w);
    const dense = scale * (window.devicePixelRatio || 1);
    const [width, height] = [Math.ceil(scene.w * dense), Math.ceil(scene.h * dense)];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    canvas.style.width = `${scene.w * scale}px`;
    canvas.style.height = `${scene.h * scale}px`;
    const c = canvas.getContext("2d");
    c.setTransform(dense, 0, 0, dense, 0, 0);
    c.fillStyle = theme.colours.panel;
    c.fillRect(0, 0, scene.w, scene.h);
    for (const mark of scene.marks) DRAW[mark.kind](c, mark, theme);
    outline(c, boxesFor(c, scene, this.selection), theme, []);
    outline(c, this.hover ? [this.hover.box] : boxesFor(c, scene, this.preview), theme, [4, 3]);
    this.root.dataset.marks = scene.marks.length;
    this.root.dataset.draws = this.draws += 1;
  }
}
