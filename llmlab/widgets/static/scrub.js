// A slider over recorded steps. It asks; the kernel answers with a new state.

const PLAY_MS = 200;

class ScrubPanel {
  constructor(model, el, palette) {
    this.model = model;
    this.stops = new AbortController();
    this.build(el);
    const { signal } = this.stops;
    followModel(model, { "change:state": () => this.show() }, signal);
    followTheme(this.root, palette, () => {}, signal);
    const tell = (visible, view) => model.send({ type: "visible", view, visible });
    followSight(this.root, Math.random().toString(36).slice(2), tell, signal);
    signal.addEventListener("abort", () => this.stop());
    this.show();
  }

  build(el) {
    this.root = element("section", "llmlab-panel llmlab-scrub", el);
    this.play = element("button", "llmlab-play", this.root);
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
    this.slider = element("input", "llmlab-slider", this.root);
    this.slider.type = "range";
    this.slider.setAttribute("aria-label", "step");
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    this.label = element("span", "llmlab-scrub-label", this.root);
    this.end = element("button", "llmlab-end", this.root);
    this.end.addEventListener("click", () => this.seek(null));
  }

  get state() {
    return this.model.get("state") ?? {};
  }

  seek(step) {
    this.asked = step;
    this.model.send({ type: "seek", step });
    this.show(step);
  }

  start() {
    const { first, last } = this.state;
    if (Number(this.slider.value) >= last) this.seek(first);
    this.timer = setInterval(() => this.next(), PLAY_MS);
    this.show(this.asked);
  }

  next() {
    const step = Number(this.slider.value) + 1;
    if (step > this.state.last) this.stop();
    else this.seek(step);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.show(this.asked);
  }

  show(asked = this.state.now) {
    const { first = null, last = null, live = false } = this.state;
    const isEmpty = first === null;
    for (const control of [this.play, this.slider, this.end]) control.disabled = isEmpty;
    this.play.textContent = this.timer ? "⏸ pause" : "▶ play";
    this.end.textContent = live ? "follow live" : "to the end";
    const step = asked ?? last;
    if (!isEmpty) Object.assign(this.slider, { min: first, max: last, value: step });
    const where = asked === null && live ? `live, step ${last}` : `step ${step} of ${first} to ${last}`;
    this.label.textContent = isEmpty ? "no step yet" : where;
    this.slider.setAttribute("aria-valuetext", this.label.textContent);
    this.root.dataset.step = step ?? "";
    this.root.dataset.following = asked === null;
  }
}
