// Addresses within the page: `#SECRET/page?name=value`. Where there is no secret, it is empty.
import { useEffect, useState } from "preact/hooks";

const FORM = /^#([0-9a-f]{32,})?(\/[a-z-]*)?(?:\?(.*))?$/;

/** The parts of an address. */
export function parse(hash) {
  const [, secret = "", page = "", query = ""] = FORM.exec(hash) ?? [];
  return { secret, page: page.slice(1), query: Object.fromEntries(new URLSearchParams(query)) };
}

let secret = parse(location.hash).secret;

/** The secret that the user's own server gave out. */
export const secretOf = () => secret;

/** The address of a page. Empty values are left out. */
export function to(page, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return `#${secret}/${page}${text ? `?${text}` : ""}`;
}

/** Goes to a page. */
export function go(page, query) {
  location.hash = to(page, query);
}

/** The page that is shown. */
export function useRoute() {
  const [route, set] = useState(parse(location.hash));
  useEffect(() => {
    const changed = () => {
      const parsed = parse(location.hash);
      // A link that the user edits may lack the secret.
      if (parsed.secret) secret = parsed.secret;
      set(parsed);
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
