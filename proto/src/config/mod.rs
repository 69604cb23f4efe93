//! Topic configuration: the keys Kafka knows with their defaults and meaning, the check of a value, and the typed view that
//! logs and replicas use. Pure; where values come from is the metadata image's business.

mod keys;
mod topic;

pub use keys::TOPIC_KEYS;
pub use topic::{CleanupPolicy, TopicConfig};

use std::ops::RangeInclusive;

/// What values a key takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A 32-bit number at least and at most this.
    Int(i32, i32),
    /// A 64-bit number at least and at most this.
    Long(i64, i64),
    /// A number between these.
    Double(f64, f64),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Comma-separated words out of these.
    ListOf(&'static [&'static str]),
    /// Comma-separated words, any.
    List,
}

/// One configuration key.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConfigKey {
    /// Kafka's name.
    pub name: &'static str,
    /// Kafka's default, as text.
    pub default: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// The broker-wide key that gives the default, if there is one.
    pub broker_synonym: Option<&'static str>,
    /// Whether it does anything here. The others are accepted, because tools set them, and have no effect.
    pub has_effect: bool,
    /// What it means, in a sentence.
    pub doc: &'static str,
}

impl ConfigKey {
    /// Checks a value; the error is a sentence.
    pub fn check(&self, value: &str) -> Result<(), String> {
        let value = value.trim();
        let problem =
            match self.kind {
                Kind::Boolean => (!matches!(value, "true" | "false"))
                    .then(|| "it must be true or false".to_owned()),
                Kind::Int(min, max) => in_range(value, &(min..=max), "a whole number"),
                Kind::Long(min, max) => in_range(value, &(min..=max), "a whole number"),
                Kind::Double(min, max) => in_range(value, &(min..=max), "a number"),
                Kind::OneOf(words) => (!words.contains(&value))
                    .then(|| format!("it must be one of {}", words.join(", "))),
                Kind::ListOf(words) => list(value)
                    .find(|word| !words.contains(word))
                    .map(|word| format!("{word:?} is not one of {}", words.join(", "))),
                Kind::List => None,
            };
        match problem {
            None => Ok(()),
            Some(problem) => Err(format!(
                "Invalid value {value} for configuration {}: {problem}",
                self.name
            )),
        }
    }
}

/// What is wrong with a number, if anything.
fn in_range<T>(value: &str, range: &RangeInclusive<T>, what: &str) -> Option<String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    match value.parse::<T>() {
        Err(_) => Some(format!("it must be {what}")),
        Ok(number) if !range.contains(&number) => Some(format!(
            "it must be between {} and {}",
            range.start(),
            range.end()
        )),
        Ok(_) => None,
    }
}

/// The words of a comma-separated list.
fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|w| !w.is_empty())
}

/// Looks a topic key up.
pub fn topic_key(name: &str) -> Option<&'static ConfigKey> {
    TOPIC_KEYS.iter().find(|key| key.name == name)
}

/// Checks a topic configuration. The error is a sentence; for an unknown key it names the nearest known one.
pub fn validate(key: &str, value: &str) -> Result<(), String> {
    match topic_key(key) {
        Some(known) => known.check(value),
        None => {
            let names = TOPIC_KEYS.iter().map(|k| k.name);
            Err(match nearest(key, names) {
                Some(near) => format!("Unknown topic config name: {key}; did you mean {near}?"),
                None => format!("Unknown topic config name: {key}"),
            })
        }
    }
}

/// The candidate that takes the fewest edits to reach from `name`, if it is close enough to be what was meant.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let tolerated = (name.chars().count() / 3).max(2);
    candidates
        .map(|candidate| (edits(name, candidate), candidate))
        .min()
        .filter(|&(distance, _)| distance <= tolerated)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_its_key_takes() {
        for key in TOPIC_KEYS {
            assert_eq!(key.check(key.default), Ok(()), "{}", key.name);
        }
        assert!(TOPIC_KEYS.is_sorted_by_key(|k| k.name));
    }

    #[test]
    fn values_are_checked_with_a_sentence() {
        for (key, value, ok) in [
            ("min.insync.replicas", "2", true),
            ("min.insync.replicas", "0", false),
            ("min.insync.replicas", "two", false),
            ("retention.ms", "-1", true),
            ("retention.ms", "-2", false),
            ("cleanup.policy", "compact, delete", true),
            ("cleanup.policy", "", true),
            ("cleanup.policy", "compact,archive", false),
            ("preallocate", "yes", false),
            ("min.cleanable.dirty.ratio", "0.25", true),
            ("min.cleanable.dirty.ratio", "NaN", false),
            ("message.timestamp.type", "LogAppendTime", true),
            ("message.timestamp.type", "logappendtime", false),
        ] {
            assert_eq!(validate(key, value).is_ok(), ok, "{key}={value}");
        }
        assert_eq!(
            validate("min.insync.replicas", "0"),
            Err(
                "Invalid value 0 for configuration min.insync.replicas: it must be between 1 and 2147483647"
                    .to_owned()
            )
        );
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_nearest_known_one() {
        let error = validate("min.insync.replica", "1").expect_err("unknown");
        assert_eq!(
            error,
            "Unknown topic config name: min.insync.replica; did you mean min.insync.replicas?"
        );
        let error = validate("something.else.entirely", "1").expect_err("unknown");
        assert_eq!(error, "Unknown topic config name: something.else.entirely");
    }
}
