//! Topics as `up --topic` takes them: `NAME:PARTITIONS:RF[:key=value,...]`.

use std::str::FromStr;

use epoka_client::NewTopic;

/// A topic asked for on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSpec(pub NewTopic);

impl FromStr for TopicSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            format!("`{text}`: {why}; write NAME:PARTITIONS:RF[:key=value,...], such as orders:3:3")
        };
        let mut parts = text.splitn(4, ':');
        let name = parts.next().filter(|n| !n.is_empty());
        let name = name.ok_or_else(|| wrong("the topic has no name".into()))?;
        epoka_controller::cluster::check_topic_name(name).map_err(wrong)?;
        let mut number = |what: &str| {
            let part = parts
                .next()
                .ok_or_else(|| wrong(format!("{what} is missing")))?;
            let number = part.parse::<i32>().ok().filter(|n| *n > 0);
            number.ok_or_else(|| wrong(format!("{what} `{part}` is not a number of 1 or more")))
        };
        let partitions = number("the number of partitions")?;
        let replication_factor = number("the replication factor")?;
        let mut topic = NewTopic::new(name, partitions, replication_factor);
        for pair in configs(parts.next().unwrap_or_default()) {
            let (key, value) = key_value(&pair).map_err(wrong)?;
            epoka_proto::config::validate(&key, &value).map_err(wrong)?;
            topic = topic.config(key, value);
        }
        Ok(Self(topic))
    }
}

/// Splits `a=1,b=2`. A piece without `=` belongs to the value before it: `cleanup.policy=compact,delete` is one pair.
fn configs(text: &str) -> Vec<String> {
    let mut pairs: Vec<String> = Vec::new();
    for piece in text.split(',').filter(|p| !p.is_empty()) {
        match pairs.last_mut() {
            Some(last) if !piece.contains('=') => {
                last.push(',');
                last.push_str(piece);
            }
            _ => pairs.push(piece.to_owned()),
        }
    }
    pairs
}

/// Reads `key=value`.
///
/// # Errors
/// A sentence when there is no `=` or no key.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("`{text}` is not of the form key=value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_a_name_two_numbers_and_configs() {
        let TopicSpec(topic) = "orders:3:2".parse().expect("complete");
        assert_eq!(topic, NewTopic::new("orders", 3, 2));
        let TopicSpec(topic) = "t:1:3:min.insync.replicas=2,cleanup.policy=compact,delete"
            .parse()
            .expect("complete");
        assert_eq!(
            topic,
            NewTopic::new("t", 1, 3)
                .config("min.insync.replicas", "2")
                .config("cleanup.policy", "compact,delete")
        );
    }

    #[test]
    fn what_is_wrong_with_a_topic_is_said() {
        for (text, says) in [
            ("", "no name"),
            (":3:3", "no name"),
            ("or ders:3:3", "other than ASCII alphanumerics"),
            ("orders", "number of partitions is missing"),
            ("orders:3", "replication factor is missing"),
            ("orders:0:3", "partitions `0`"),
            ("orders:3:many", "factor `many`"),
            ("orders:3:3:min.insync.replicas", "key=value"),
            (
                "orders:3:3:min.insync.replica=2",
                "did you mean min.insync.replicas",
            ),
            ("orders:3:3:min.insync.replicas=x", "min.insync.replicas"),
        ] {
            let error = text.parse::<TopicSpec>().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
