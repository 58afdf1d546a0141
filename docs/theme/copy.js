// A button on every block of code that copies the block; where a browser does not allow it, the block is selected instead.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.codehilite, pre:not(div.codehilite pre)")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      const code = block.querySelector("code") ?? block;
      try {
        await navigator.clipboard.writeText(code.innerText);
        button.textContent = "copied";
      } catch {  // a page opened as a file, or an old browser
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    block.style.position = "relative";
    block.append(button);
  }
});
