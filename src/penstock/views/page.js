// What every page can do with its tables and commands: sort and copy.  Knows no chart.

export function sortable(root) {
  for (const table of root.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const headings = table.tHead.rows[0].cells;
    for (const heading of headings) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") !== "descending";
        for (const other of headings) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => row.cells[heading.cellIndex].dataset.v ?? row.cells[heading.cellIndex].textContent;
        const order = (a, b) => {
          const [x, y] = [value(a), value(b)];
          const [p, q] = [parseFloat(x), parseFloat(y)];
          return isNaN(p) || isNaN(q) ? (isNaN(p) ? 0 : 1) - (isNaN(q) ? 0 : 1) || x.localeCompare(y) : p - q;
        };
        body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
      });
    }
  }
}

export function copyable(root) {
  for (const command of root.querySelectorAll(".command:not(.template)")) {
    const code = command.querySelector("code");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      button.textContent = (await copied(code)) ? "copied" : "select it";
      setTimeout(() => (button.textContent = "copy"), 2000);
    });
    command.append(button);
  }
}

// Over plain http there is no clipboard; a selection can still be copied.
async function copied(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  }
}
