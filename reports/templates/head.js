// before anything is shown: that there are scripts, and the theme that was chosen last
document.documentElement.classList.add("js");
try {
  const chosen = localStorage.getItem("scaleproof-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* a browser may keep nothing for files */ }
