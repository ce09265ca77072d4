//! As much of HTTP/1.1 as a scrape takes: one request on a connection, without a body, and one
//! answer.

use super::text::CONTENT_TYPE;

/// The longest request that is read: those of Prometheus have a few hundred bytes.
pub(super) const MAX_REQUEST: usize = 8 * 1024;

/// The path under which metrics are found, as everywhere.
const PATH: &str = "/metrics";

/// Why a request is not answered with metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is no HTTP.
    Malformed,
    /// It is for another path.
    NotFound,
    /// It is not a GET.
    Method,
    /// It is longer than any has to be.
    TooLong,
    /// The daemon ends.
    Ending,
}

impl Refusal {
    fn status(self) -> &'static str {
        match self {
            Refusal::Malformed => "400 Bad Request",
            Refusal::NotFound => "404 Not Found",
            Refusal::Method => "405 Method Not Allowed",
            Refusal::TooLong => "431 Request Header Fields Too Large",
            Refusal::Ending => "503 Service Unavailable",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Refusal::Malformed => "This is not HTTP/1: expected GET /metrics HTTP/1.1.",
            Refusal::NotFound => "There is nothing under this path; metrics are under /metrics.",
            Refusal::Method => "Metrics can be read by GET, and nothing else can be done here.",
            Refusal::TooLong => "The request has more than 8192 bytes.",
            Refusal::Ending => "urxed ends.",
        }
    }

    /// The answer that says so.
    pub(super) fn answer(self) -> Vec<u8> {
        let allow = if self == Refusal::Method { "Allow: GET\r\n" } else { "" };
        let body = format!("{}\n", self.sentence());
        answer(self.status(), "text/plain; charset=utf-8", allow, &body)
    }
}

/// The answer with metrics.
pub(super) fn metrics(text: &str) -> Vec<u8> {
    answer("200 OK", CONTENT_TYPE, "", text)
}

fn answer(status: &str, content_type: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         {more}Connection: close\r\n\r\n"
    );
    (head + body).into_bytes()
}

/// Whether a request is for metrics; `None` if there has to come more of it.
pub(super) fn judge(request: &[u8]) -> Option<Result<(), Refusal>> {
    let is_whole = request.windows(4).any(|end| end == b"\r\n\r\n");
    // METRIC-003
    if !is_whole {
        return (request.len() >= MAX_REQUEST).then_some(Err(Refusal::TooLong));
    }
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    Some(judge_line(line))
}

/// The same of the first line, which says it all.
fn judge_line(line: &[u8]) -> Result<(), Refusal> {
    let line = std::str::from_utf8(line).map_err(|_| Refusal::Malformed)?;
    let [method, target, version] =
        line.split(' ').collect::<Vec<_>>().try_into().map_err(|_| Refusal::Malformed)?;
    if !version.starts_with("HTTP/1.") {
        return Err(Refusal::Malformed);
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    match (method, path) {
        (_, path) if path != PATH => Err(Refusal::NotFound),
        ("GET", _) => Ok(()),
        _ => Err(Refusal::Method),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(line: &str) -> Option<Result<(), Refusal>> {
        judge(format!("{line}\r\nHost: localhost\r\n\r\n").as_bytes())
    }

    #[test]
    fn metrics_are_read_by_get_of_one_path() {
        for line in ["GET /metrics HTTP/1.1", "GET /metrics HTTP/1.0", "GET /metrics?a=b HTTP/1.1"]
        {
            assert_eq!(judged(line), Some(Ok(())), "{line}");
        }
        for (line, refusal) in [
            ("GET / HTTP/1.1", Refusal::NotFound),
            ("POST /metrics HTTP/1.1", Refusal::Method),
            ("GET /metrics HTTP/2", Refusal::Malformed),
            ("GET /metrics", Refusal::Malformed),
            ("GET  /metrics HTTP/1.1", Refusal::Malformed),
            ("", Refusal::Malformed),
        ] {
            assert_eq!(judged(line), Some(Err(refusal)), "{line}");
            let answer = String::from_utf8(refusal.answer()).unwrap();
            assert!(answer.starts_with("HTTP/1.1 4") && answer.ends_with(".\n"), "{answer}");
        }
        assert_eq!(judge(b"\xff\xfe\r\n\r\n"), Some(Err(Refusal::Malformed)));
    }

    #[test]
    fn a_request_is_waited_for_until_it_is_too_long() {
        assert_eq!(judge(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(judge(&[b'a'; MAX_REQUEST - 1]), None);
        assert_eq!(judge(&[b'a'; MAX_REQUEST]), Some(Err(Refusal::TooLong)));
    }

    #[test]
    fn an_answer_says_what_it_is_and_how_long() {
        let answer = String::from_utf8(metrics("# EOF\n")).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "# EOF\n");
        for line in [
            "HTTP/1.1 200 OK",
            "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8",
            "Content-Length: 6",
            "Connection: close",
        ] {
            assert!(head.lines().any(|found| found == line), "{head}");
        }
    }
}
