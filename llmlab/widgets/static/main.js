// The displays by kind.
const DISPLAYS = { canvas: CanvasPanel, text: TextPanel, scrub: ScrubPanel, note: NoteLine };

export function render({ model, el, palette }) {
  const display = new DISPLAYS[model.get("kind")](model, el, palette);
  return () => display.stops.abort();
}
