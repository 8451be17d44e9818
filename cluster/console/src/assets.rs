//! The files of the pages, with the headers under which a browser runs nothing else.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};

/// What a page may do: run the files of its own server, WebAssembly among them, and ask that
/// server. No text becomes a script: the one policy for scripts gives the name of the worker.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
                      worker-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types coppice";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the pages.
#[derive(Clone, Copy, Debug)]
struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal: $kind:expr,)*) => {
        [$(Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("../dist/", $name)) },)*]
    };
}

/// Everything but the first page.
const FILES: [Asset; 5] = assets! {
    "app.js": SCRIPT,
    "app.css": "text/css; charset=utf-8",
    "worker.js": SCRIPT,
    "verify.wasm": "application/wasm",
    "offline.html": HTML,
};

const PAGES: [Asset; 2] = assets! {
    "index.html": HTML,
    "log.html": HTML,
};

/// The page that a server shows at its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// All pages, for a user of the ledger.
    Console,
    /// The root log, and the check of a file: for the public.
    Log,
}

impl Front {
    /// The file at a path, with its headers; `None` if there is none.
    #[must_use]
    pub fn answer(self, path: &str) -> Option<Response> {
        let name = path.strip_prefix('/')?;
        let asset = match (name, self) {
            ("", Self::Console) => PAGES[0],
            ("", Self::Log) => PAGES[1],
            _ => *FILES.iter().find(|asset| asset.name == name)?,
        };
        Some(asset.answer())
    }
}

impl Asset {
    fn answer(self) -> Response {
        let mut answer = Response::new(Body::from(self.bytes));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        // The page for offline use has a policy of its own, with the hashes of its scripts.
        if self.name == "offline.html" {
            let saved = HeaderValue::from_static("attachment; filename=\"coppice-offline.html\"");
            answer.headers_mut().insert(header::CONTENT_DISPOSITION, saved);
        }
        protect(answer)
    }
}

/// Adds the headers that every answer of a console has.
pub(crate) fn protect(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    let mut say = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    say(header::CONTENT_SECURITY_POLICY, POLICY);
    say(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    say(header::REFERRER_POLICY, "no-referrer");
    // A newer program has newer files under the same names.
    say(header::CACHE_CONTROL, "no-cache");
    say(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    say(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    answer
}

/// A refusal in words, for a person.
pub(crate) fn refusal(code: StatusCode, words: &'static str) -> Response {
    let mut answer = Response::new(Body::from(format!("{words}\n")));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    protect(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_front_has_its_page_and_all_files_under_the_policy() {
        for front in [Front::Console, Front::Log] {
            for path in ["/", "/app.js", "/app.css", "/worker.js", "/verify.wasm", "/offline.html"] {
                let answer = front.answer(path).unwrap_or_else(|| panic!("{path} is there"));
                assert_eq!(answer.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
                assert!(answer.headers().contains_key(header::CONTENT_TYPE), "{path}");
            }
            for path in ["", "app.js", "//", "/app.js/", "/index.html", "/../Cargo.toml", "/App.js"] {
                assert!(front.answer(path).is_none(), "{path}");
            }
        }
    }

    #[test]
    fn no_page_names_anything_of_another_server() {
        for asset in PAGES.iter().chain(&FILES).filter(|asset| asset.kind != "application/wasm") {
            let text = std::str::from_utf8(asset.bytes).expect("a page is text");
            for foreign in ["src=\"http", "href=\"http", "url(http", "@import", "//cdn"] {
                assert!(!text.contains(foreign), "{}: {foreign}", asset.name);
            }
        }
    }
}
