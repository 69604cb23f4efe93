//! Where a node's settings come from: a properties file, the environment, `--set`, each overriding the one before. What a
//! setting means is its owner's business; here is only what Kafka knows and we do not.

use std::collections::BTreeMap;
use std::path::Path;

use super::kafka_keys::KAFKA_KEYS;
use crate::failure::{Failure, Outcome};

/// Settings by name.
pub type Properties = BTreeMap<String, String>;

/// Environment variables that begin like settings and are none.
const NOT_SETTINGS: [&str; 4] = [
    "EPOKA_LOG",
    "EPOKA_LOG_FORMAT",
    "EPOKA_DATA_DIR",
    "EPOKA_BOOTSTRAP",
];

/// Gathers settings from a file, the environment and `--set`.
///
/// # Errors
/// The file cannot be read, or a line of it is no setting.
pub fn gather(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    set: &[(String, String)],
) -> Outcome<Properties> {
    let mut properties = Properties::new();
    if let Some(path) = file {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Failure::usage(format!("the configuration file {name} cannot be read: {e}"))
        })?;
        properties.extend(parse(&text).map_err(|e| Failure::usage(format!("{name}: {e}")))?);
    }
    properties.extend(environment.filter_map(|(name, value)| Some((from_variable(&name)?, value))));
    properties.extend(set.iter().cloned());
    Ok(properties)
}

/// `EPOKA_LOG_DIRS` sets `log.dirs`. A variable that names no setting of either kind of node is none of ours.
fn from_variable(name: &str) -> Option<String> {
    if NOT_SETTINGS.contains(&name) {
        return None;
    }
    let key = name
        .strip_prefix("EPOKA_")?
        .to_lowercase()
        .replace('_', ".");
    // Our own keys begin with `epoka.`, which nobody wants to write twice.
    let candidates = [format!("epoka.{key}"), key];
    let known = candidates.into_iter().find(|c| is_known(c));
    if known.is_none() {
        tracing::debug!(name, "the variable names no setting");
    }
    known
}

fn is_known(key: &str) -> bool {
    let broker = epoka_broker::config::KEYS.iter().map(|k| k.name);
    broker
        .chain(super::controller::names())
        .chain(KAFKA_KEYS.iter().copied())
        .any(|k| k == key)
}

/// Reads a Java properties file: `key=value` or `key: value` lines, `#` and `!` comments, a final backslash continues a line.
fn parse(text: &str) -> Result<Properties, String> {
    let mut properties = Properties::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, first)) = lines.next() {
        let mut line = first.trim().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while line.ends_with('\\') {
            line.pop();
            line.push_str(lines.next().map_or("", |(_, next)| next.trim()));
        }
        let separator = line.find(['=', ':']);
        let Some((key, value)) = separator.map(|at| (line[..at].trim(), line[at + 1..].trim()))
        else {
            return Err(format!(
                "line {}: `{line}` is not of the form key=value",
                number + 1
            ));
        };
        properties.insert(key.to_owned(), value.to_owned());
    }
    Ok(properties)
}

/// Takes out the keys that Kafka knows and this node, which knows `known`, has no use for; warns of each once.
pub fn drop_meaningless<'a>(
    properties: &mut Properties,
    known: impl Iterator<Item = &'a str> + Clone,
    node: &str,
) {
    properties.retain(|key, _| {
        let meaningless = KAFKA_KEYS.contains(&key.as_str()) && !known.clone().any(|k| k == key);
        if meaningless {
            tracing::warn!(
                "{key} is a Kafka setting that has no meaning for a {node} here; it is ignored"
            );
        }
        !meaningless
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn a_properties_file_has_comments_continuations_and_both_separators() {
        let text = "# comment\n! another\n\nnode.id = 1\nlisteners: PLAINTEXT://127.0.0.1:9092\nlog.dirs=/a,\\\n  /b\nbroker.rack=\n";
        let read = parse(text).expect("well formed");
        let expected = [
            ("broker.rack", ""),
            ("listeners", "PLAINTEXT://127.0.0.1:9092"),
            ("log.dirs", "/a,/b"),
            ("node.id", "1"),
        ];
        assert_eq!(read, owned(&expected).into_iter().collect());
        assert!(parse("node.id=1\nnonsense").is_err_and(|e| e.contains("line 2")));
    }

    #[test]
    fn the_environment_overrides_the_file_and_set_overrides_both() {
        let directory =
            std::env::temp_dir().join(format!("epoka-properties-{}", std::process::id()));
        std::fs::write(&directory, "node.id=1\nlog.dirs=/file\nbroker.rack=file")
            .expect("writable");
        let environment = owned(&[
            ("EPOKA_LOG_DIRS", "/environment"),
            ("EPOKA_BROKER_RACK", "environment"),
            ("EPOKA_GRPC_LISTENER", "127.0.0.1:1"),
            ("EPOKA_LOG", "debug"),
            ("EPOKA_NO_SETTING_AT_ALL", "1"),
            ("HOME", "/root"),
        ]);
        let set = owned(&[("broker.rack", "set")]);
        let gathered =
            gather(Some(&directory), environment.into_iter(), &set).expect("well formed");
        let expected = [
            ("broker.rack", "set"),
            ("epoka.grpc.listener", "127.0.0.1:1"),
            ("log.dirs", "/environment"),
            ("node.id", "1"),
        ];
        assert_eq!(gathered, owned(&expected).into_iter().collect());
        std::fs::remove_file(directory).expect("there");
    }

    #[test]
    fn only_kafkas_own_keys_are_dropped() {
        let pairs = [
            ("zookeeper.connect", "x"),
            ("node.id", "1"),
            ("node.idd", "1"),
        ];
        let mut properties: Properties = owned(&pairs).into_iter().collect();
        drop_meaningless(&mut properties, ["node.id"].into_iter(), "broker");
        let left: Vec<_> = properties.keys().map(String::as_str).collect();
        assert_eq!(left, ["node.id", "node.idd"]);
    }
}
