// What all displays share: elements, and the theme of the page they are on.

const THEME_ATTRIBUTES = ["class", "data-jp-theme-name", "data-jp-theme-light", "data-vscode-theme-kind"];

function themeName() {
  const { jpThemeLight } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "true" ? "light" : "dark";
  const classes = document.body.classList;
  if (classes.contains("vscode-light") || classes.contains("vscode-high-contrast-light")) return "light";
  if (classes.contains("vscode-dark") || classes.contains("vscode-high-contrast")) return "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// Calls `apply` now and whenever the page changes its theme; `signal` ends it.
function followTheme(root, palette, apply, signal) {
  const update = () => {
    const name = themeName();
    root.dataset.theme = name;
    for (const [role, colour] of Object.entries(palette[name].colours)) {
      root.style.setProperty(`--llmlab-${role}`, colour);
    }
    apply(palette[name]);
  };
  const observer = new MutationObserver(update);
  observer.observe(document.body, { attributes: true, attributeFilter: THEME_ATTRIBUTES });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
  update();
}

// Tells the kernel whether this view can be seen, so that it stops drawing what nobody looks at.
function followSight(root, view, tell, signal) {
  let [isOnScreen, told] = [true, null];
  const update = () => {
    const isVisible = isOnScreen && !document.hidden && !signal.aborted;
    if (isVisible !== told) tell((told = isVisible), view);
  };
  const observer = new IntersectionObserver((entries) => {
    isOnScreen = entries[entries.length - 1].isIntersecting;
    update();
  });
  observer.observe(root);
  document.addEventListener("visibilitychange", update, { signal });
  signal.addEventListener("abort", () => {
    observer.disconnect();
    if (told) update();
  });
}

// Follows traits of the widget until `signal` ends it.
function followModel(model, handlers, signal) {
  for (const [name, act] of Object.entries(handlers)) model.on(name, act);
  signal.addEventListener("abort", () => {
    for (const [name, act] of Object.entries(handlers)) model.off(name, act);
  });
}

function element(tag, name, parent) {
  const made = document.createElement(tag);
  made.className = name;
  parent.append(made);
  return made;
}

function words(key) {
  return Object.entries(key).map(([field, value]) => `${field} ${value}`).join(", ");
}
