// Fetches the drawing module from the widget that holds it, once per page, and lets it draw here.
const modules = (globalThis.llmlabModules ??= new Map());

function load(source) {
  if (!modules.has(source)) {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    modules.set(source, import(url).finally(() => URL.revokeObjectURL(url)));
  }
  return modules.get(source);
}

export default {
  async render({ model, el }) {
    const code = await model.widget_manager.get_model(model.get("code").slice("IPY_MODEL_".length));
    const drawing = await load(code.get("source"));
    const style = document.createElement("style");
    style.textContent = code.get("style");
    el.append(style);
    return drawing.render({ model, el, palette: code.get("palette") });
  },
};
