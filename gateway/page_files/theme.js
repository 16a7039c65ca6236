// The theme: that of the system, or one that was chosen. Runs before the page is painted, so that nothing flashes.

const choose = (theme) => {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
};

const keptTheme = () => {
  try {
    const theme = localStorage.getItem("outrider.theme");
    return ["light", "dark"].includes(theme) ? theme : "";
  } catch {
    return "";
  }
};

choose(keptTheme());
addEventListener("DOMContentLoaded", () => {
  const select = document.getElementById("theme");
  select.value = keptTheme();
  select.addEventListener("change", () => {
    choose(select.value);
    try {
      localStorage.setItem("outrider.theme", select.value);
    } catch {
      // this browser keeps nothing for pages: the theme is for now
    }
  });
});
