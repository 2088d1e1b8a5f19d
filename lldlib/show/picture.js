// A picture with its alt text, which reports the width that the page has for it.
export default {
  render({ model, el }) {
    const image = document.createElement("img");
    image.className = "widget-image";
    Object.assign(image.style, { maxWidth: "100%", height: "auto", display: "block" });
    let address = null;
    const draw = () => {
      const bytes = model.get("value");
      if (bytes.byteLength) {
        const old = address;
        address = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
        image.src = address;
        if (old) URL.revokeObjectURL(old);
      }
      image.alt = model.get("alt");
      el.style.minHeight = address ? "" : `${model.get("height")}px`; // room for what will come
    };
    draw();
    for (const name of ["value", "alt", "height"]) model.on(`change:${name}`, draw);
    el.style.width = "100%";
    el.appendChild(image);
    const watch = new ResizeObserver(([seen]) => {
      const width = Math.round(seen.contentRect.width);
      if (width && width !== model.get("width")) {
        model.set("width", width);
        model.save_changes();
      }
    });
    watch.observe(el);
    return () => {
      watch.disconnect();
      if (address) URL.revokeObjectURL(address);
    };
  },
};
