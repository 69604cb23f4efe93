//! Which topic names Kafka allows, and which two of them would share a metric's name.

use epoka_proto::metadata::Image;

/// The longest name: with `-` and a partition number it still is a file name.
const MAX_LENGTH: usize = 249;

/// Says what is wrong with a topic's name.
///
/// # Errors
/// A few words, as Kafka puts them.
pub fn check(name: &str) -> Result<(), String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let wrong = if name.is_empty() {
        "the empty string is not allowed".to_owned()
    } else if name == "." || name == ".." {
        "'.' or '..' is not allowed".to_owned()
    } else if name.len() > MAX_LENGTH {
        format!(
            "the length of a name of {} characters is longer than the max allowed length {MAX_LENGTH}",
            name.len()
        )
    } else if !name.bytes().all(legal) {
        format!(
            "'{}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
            name.escape_debug()
        )
    } else {
        return Ok(());
    };
    Err(format!("Topic name is invalid: {wrong}"))
}

/// An existing topic whose name differs from this one only in `.` against `_`.
pub(super) fn colliding<'a>(image: &'a Image, name: &str) -> Option<&'a str> {
    if !name.contains(['.', '_']) {
        return None;
    }
    let flat = name.replace('.', "_");
    let mut existing = image.topic_ids.keys();
    existing
        .find(|other| other.contains(['.', '_']) && other.replace('.', "_") == flat)
        .map(|other| &**other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_as_kafka_does() {
        for good in ["orders", "a", "_x", "a.b", "A-1", &"x".repeat(249)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", &"x".repeat(250)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
