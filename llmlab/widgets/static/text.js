// Text as it arrives: one part per request, additions as messages.

class TextPanel {
  constructor(model, el, palette) {
    this.model = model;
    this.stops = new AbortController();
    this.root = element("section", "llmlab-panel llmlab-text", el);
    this.parts = element("div", "llmlab-parts", this.root);
    this.parts.setAttribute("role", "log");
    this.parts.tabIndex = 0;
    this.parts.setAttribute("aria-label", "generated text");
    this.rows = new Map();
    const { signal } = this.stops;
    const tell = (visible, view) => model.send({ type: "visible", view, visible });
    followModel(model, { "msg:custom": (message) => this.receive(message) }, signal);
    followTheme(this.root, palette, () => {}, signal);
    followSight(this.root, Math.random().toString(36).slice(2), tell, signal);
    this.receive({ type: "all", parts: model.get("parts") ?? [] });
  }

  receive({ type, parts }) {
    const isAtEnd = this.parts.scrollTop + this.parts.clientHeight >= this.parts.scrollHeight - 8;
    if (type === "all") {
      this.rows.clear();
      this.parts.replaceChildren();
    }
    for (const part of parts) this.add(part);
    if (isAtEnd) this.parts.scrollTop = this.parts.scrollHeight;
    this.root.dataset.parts = this.rows.size;
    this.root.dataset.characters = [...this.rows.values()].reduce((sum, row) => sum + row.text.textContent.length, 0);
  }

  add({ id, name, text }) {
    if (!this.rows.has(id)) {
      const part = element("div", "llmlab-part", this.parts);
      this.rows.set(id, { name: element("div", "llmlab-part-name", part), text: element("pre", "llmlab-part-text", part) });
    }
    const row = this.rows.get(id);
    row.name.textContent = name;
    row.text.append(document.createTextNode(text)); // text, never markup
  }
}
