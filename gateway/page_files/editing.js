// A question that is written anew, in its place.

import { leaves, make } from "./base.js";
import { sends } from "./composer.js";

/** Put a form in place of a question's text; `done` gets the new text and says whether it was sent. */
export function edit(article, text, done) {
  const body = article.querySelector(".body");
  if (article.querySelector(".edit")) return;
  const field = make("textarea", { rows: "3", "aria-label": "Question, edited" });
  const send = make("button", { type: "submit", classes: "main" }, "Send");
  const leave = make("button", { type: "button" }, "Cancel");
  const form = make("form", { classes: "edit" }, field, make("div", { classes: "actions" }, send, leave));
  const close = () => {
    form.remove();
    body.hidden = false;
  };
  const leaveIt = () => {
    close();
    article.querySelector('[data-act="edit"]')?.focus();
  };
  field.value = text;
  leave.addEventListener("click", leaveIt);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = field.value.trim();
    if (!wanted || done(wanted)) close();
  });
  form.addEventListener("keydown", (event) => {
    if (event.target === field && sends(event)) {
      event.preventDefault();
      form.requestSubmit();
    }
    if (!leaves(event)) return;
    event.stopPropagation();
    leaveIt();
  });
  body.hidden = true;
  body.after(form);
  field.focus();
}
