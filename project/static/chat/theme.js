// Dark or light: the visitor's choice, else the system's. A classic script in the head, so that nothing flashes.
(() => {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const chosen = localStorage.getItem("agui:theme");
  if (chosen) root.dataset.theme = chosen;
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      localStorage.setItem("agui:theme", root.dataset.theme);
    });
  });
})();
