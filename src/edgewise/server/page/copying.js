// Copies text; says in a word how that went.
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return "copied";
    } catch {
      // Not allowed to this page; the older way may be.
    }
  }
  return copied(text) ? "copied" : "The browser does not let the page copy; select the text.";
}

// Where the page is not at a secure address.
function copied(text) {
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } finally {
    field.remove();
    before?.focus();
  }
}
