"""Files that are dropped on a notebook's upload button are taken as if they had been chosen."""

CLASS = "lldlib-drop"  # of the box on which files may be dropped
# ipywidgets has no drop of its own, and keeps its file input out of the page: so a click on the
# button is made, and what would open the dialogue hands the dropped files over
SCRIPT = f"""<script>(() => {{
  if (window.lldlibDrop) return;
  window.lldlibDrop = true;
  const box = (event) => event.target.closest && event.target.closest(".{CLASS}");
  document.addEventListener("dragover", (event) => {{
    if (box(event)) event.preventDefault();
  }}, true);
  document.addEventListener("drop", (event) => {{
    const here = box(event), files = event.dataTransfer && event.dataTransfer.files;
    const button = here && here.querySelector(".widget-upload");
    if (!button || !files || !files.length) return;
    event.preventDefault();
    event.stopPropagation();
    const dialogue = HTMLInputElement.prototype.click;
    HTMLInputElement.prototype.click = function () {{
      this.files = files;
      this.dispatchEvent(new Event("change"));
    }};
    try {{ button.click(); }} finally {{ HTMLInputElement.prototype.click = dialogue; }}
  }}, true);
}})();</script>"""
