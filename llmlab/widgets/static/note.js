// One line beside the controls.

class NoteLine {
  constructor(model, el, palette) {
    this.stops = new AbortController();
    this.root = element("section", "llmlab-panel llmlab-line", el);
    this.root.setAttribute("role", "status");
    const { signal } = this.stops;
    const show = () => {
      const { text = "", error = false } = model.get("state") ?? {};
      this.root.textContent = (error ? "⚠ " : "") + text;
      this.root.classList.toggle("llmlab-alarm", error);
    };
    followModel(model, { "change:state": show }, signal);
    followTheme(this.root, palette, () => {}, signal);
    const tell = (visible, view) => model.send({ type: "visible", view, visible });
    followSight(this.root, Math.random().toString(36).slice(2), tell, signal);
    show();
  }
}
