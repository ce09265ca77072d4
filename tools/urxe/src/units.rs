//! Sizes, durations and numbers as text.

use std::time::Duration;

/// Reads a size in bytes: `64`, `4K`, `64KiB`, `1M`. All units are powers of 1,024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(format!("{text:?} is not a size, expected bytes such as 64, 4K or 1M")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text:?} is not a size, expected bytes such as 64, 4K or 1M"))
}

/// Reads a QPN: decimal, or hex behind 0x.
pub(crate) fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let expected = "expected a number below 2^24 such as 17 or 0x11";
    number.filter(|&qpn| qpn < 1 << 24).ok_or_else(|| format!("{text:?} is no QPN, {expected}"))
}

/// The longest duration: a hundred years, behind which there is still a time on any clock.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Reads a duration: `2s`, `500ms`, `1m`; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration, expected one such as 2s, 500ms or 1m");
    let (number, unit) = split_unit(text);
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * scale;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration > LONGEST => {
            Err(format!("{text:?} is too long, expected a hundred years or less"))
        }
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(wrong()),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

/// A size for a table: `64`, `4 KiB`, `1 MiB`; whole units only, so that nothing is rounded.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A whole number with commas: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A measured figure with three significant digits or all those before the point.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qpn_is_decimal_or_hex() {
        assert_eq!(parse_qpn("17"), Ok(17));
        assert_eq!(parse_qpn("0x000011"), Ok(17));
        for wrong in ["", "x", "0x", "-1", "16777216"] {
            assert!(parse_qpn(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("64", 64),
            ("4K", 4096),
            ("64KiB", 65536),
            ("8 MiB", 8 << 20),
            ("1g", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "K", "-1", "1.5K", "4X", "99999999999G"] {
            let error = parse_size(wrong).unwrap_err();
            assert!(error.contains(wrong) && error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn a_formatted_size_parses_back_to_itself() {
        for bytes in [0, 1, 1023, 1024, 1536, 65536, 1 << 20, (1 << 20) + 1, 3 << 30] {
            assert_eq!(parse_size(&size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("2", 2000), ("2s", 2000), ("500ms", 500), ("1m", 60_000), ("0.5s", 500)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in ["", "s", "-1s", "0", "2h", "1e400s", "NaN", "10000000000000000000"] {
            assert!(parse_duration(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
        let longest = parse_duration("3153600000").unwrap();
        assert!(std::time::Instant::now().checked_add(longest).is_some());
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.1234, 1.234, 12.34, 123.4].map(figure), ["0.123", "1.23", "12.3", "123"]);
    }
}
