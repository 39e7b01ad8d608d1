// Dark or light: the visitor's choice, else the system's. CopilotKit's styles go by a class.
import { useLayoutEffect, useState } from "react";

const KEY = "agui:theme"; // shared with the site's chat page

export function useDark() {
  const [dark, setDark] = useState(() => {
    const chosen = localStorage.getItem(KEY);
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  });
  useLayoutEffect(() => {
    document.documentElement.classList.toggle("dark", dark);
  }, [dark]);
  return [dark, () => {
    localStorage.setItem(KEY, dark ? "light" : "dark");
    setDark(!dark);
  }];
}
