//! Who may ask: pages of this server, opened by the user who started it.
//!
//! Each check stands against another stranger. The host is compared because a name of somebody else
//! can lead a browser to this address. Origin and `Sec-Fetch-Site` are compared because a page of
//! another server can ask this one. The secret is asked for because other users of the machine can
//! connect, too; no browser sends it unasked, since it is no cookie.

use axum::http::{
    HeaderMap, HeaderName, StatusCode, Uri,
    header::{HOST, ORIGIN},
};

/// The header with the secret.
pub const SECRET: HeaderName = HeaderName::from_static("coppice-console");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The names of this machine that a browser may use, before the port.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Why a request is refused: the code, and words for the user.
pub type Refusal = (StatusCode, &'static str);

const OTHER_HOST: Refusal = (
    StatusCode::MISDIRECTED_REQUEST,
    "this console answers to localhost, 127.0.0.1 and [::1] with its own port, and to no other name",
);
const OTHER_ORIGIN: Refusal =
    (StatusCode::FORBIDDEN, "a page of another server has asked: open the console's address by yourself");
const NO_SECRET: Refusal =
    (StatusCode::FORBIDDEN, "the secret is missing: open the whole address that `coppice console` printed");

/// Judges the requests of one console.
#[derive(Clone)]
pub struct Guard {
    hosts: [String; 3],
    secret: String,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Guard {
    /// A guard of the console on this port of the loopback interface.
    ///
    /// # Panics
    /// If the secret is shorter than 32 characters.
    #[must_use]
    pub fn new(port: u16, secret: String) -> Self {
        assert!(secret.len() >= 32, "a secret can't be guessed");
        Self { hosts: NAMES.map(|name| format!("{name}:{port}")), secret }
    }

    /// Checks a request for a file of the pages.
    ///
    /// # Errors
    /// If it is for another host, or if a page of another server sent it.
    pub fn check_page(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = one(headers, &HOST).flatten().ok_or(OTHER_HOST)?;
        let named = uri.authority().map(|authority| authority.as_str());
        if !self.is_own(host) || named.is_some_and(|named| !self.is_own(named)) {
            return Err(OTHER_HOST);
        }
        let origin = one(headers, &ORIGIN).ok_or(OTHER_ORIGIN)?;
        if origin.is_some_and(|origin| !origin.strip_prefix("http://").is_some_and(|host| self.is_own(host))) {
            return Err(OTHER_ORIGIN);
        }
        match one(headers, &FETCH_SITE).ok_or(OTHER_ORIGIN)? {
            // A browser says `none` for an address that its user typed in or opened.
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) => Err(OTHER_ORIGIN),
        }
    }

    /// Checks a request for anything about the ledger.
    ///
    /// # Errors
    /// Like [`Guard::check_page`], or if the secret is missing or wrong.
    pub fn check_call(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_page(uri, headers)?;
        let said = one(headers, &SECRET).flatten().ok_or(NO_SECRET)?;
        if same(said.as_bytes(), self.secret.as_bytes()) { Ok(()) } else { Err(NO_SECRET) }
    }

    fn is_own(&self, host: &str) -> bool {
        self.hosts.iter().any(|own| own == host)
    }
}

/// The header of this name; `None` if it is given twice or is no text.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<Option<&'h str>> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Some(None),
        (Some(value), None) => value.to_str().ok().map(Some),
        (Some(_), Some(_)) => None,
    }
}

/// Compares two texts in a time that does not tell where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f";

    fn judged(uri: &str, headers: &[(&'static str, &str)]) -> (bool, bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).expect("a header"));
        }
        let (guard, uri) = (Guard::new(7480, KEY.to_owned()), uri.parse().expect("an address"));
        (guard.check_page(&uri, &map).is_ok(), guard.check_call(&uri, &map).is_ok())
    }

    #[test]
    fn only_the_own_names_with_the_own_port_are_hosts() {
        for host in ["localhost:7480", "127.0.0.1:7480", "[::1]:7480"] {
            assert_eq!(judged("/", &[("host", host), ("coppice-console", KEY)]), (true, true), "{host}");
        }
        for host in [
            "127.0.0.1.evil.com:7480",
            "127.0.0.1.evil.com",
            "evil.com",
            "evil.com:7480",
            "localhost:7481",
            "localhost:07480",
            "localhost:+7480",
            "localhost",
            "localhost:",
            "localhost.:7480",
            "localhost.evil.com:7480",
            "user@localhost:7480",
            "localhost:7480@evil.com",
            "127.1:7480",
            "127.0.0.2:7480",
            "0.0.0.0:7480",
            "::1:7480",
            "[::1]",
            "[::ffff:127.0.0.1]:7480",
            "",
            " localhost:7480 x",
        ] {
            assert_eq!(judged("/", &[("host", host), ("coppice-console", KEY)]), (false, false), "{host}");
        }
        assert_eq!(judged("/", &[("coppice-console", KEY)]), (false, false), "no host");
        let twice = [("host", "localhost:7480"), ("host", "localhost:7480"), ("coppice-console", KEY)];
        assert_eq!(judged("/", &twice), (false, false), "two hosts");
        assert!(!judged("http://evil.com/", &twice[1..]).0, "the line of the request names another host");
        assert!(judged("http://localhost:7480/", &twice[1..]).1);
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let with = |name, value| judged("/", &[("host", "localhost:7480"), ("coppice-console", KEY), (name, value)]);
        assert!(with("origin", "http://localhost:7480").1 && with("origin", "http://127.0.0.1:7480").1);
        for origin in [
            "http://evil.com",
            "https://localhost:7480",
            "http://localhost:1",
            "null",
            "http://localhost:7480.evil.com",
        ] {
            assert_eq!(with("origin", origin), (false, false), "{origin}");
        }
        assert!(with("sec-fetch-site", "same-origin").1 && with("sec-fetch-site", "none").1);
        assert_eq!(with("sec-fetch-site", "cross-site"), (false, false));
        assert_eq!(with("sec-fetch-site", "same-site"), (false, false), "another port of this machine");
    }

    #[test]
    fn what_is_about_the_ledger_needs_the_secret() {
        let with = |secret: &str| judged("/", &[("host", "localhost:7480"), ("coppice-console", secret)]);
        assert_eq!(with(KEY), (true, true));
        for wrong in ["", "0", &KEY[1..], &format!("{KEY}0"), &KEY.to_uppercase(), "100102030405060708090a0b0c0d0e0f"] {
            assert_eq!(with(wrong), (true, false), "{wrong}");
        }
        assert_eq!(judged("/", &[("host", "localhost:7480")]), (true, false));
        let twice = [("host", "localhost:7480"), ("coppice-console", KEY), ("coppice-console", KEY)];
        assert_eq!(judged("/", &twice), (true, false));
    }
}
