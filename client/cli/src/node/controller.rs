//! A controller's settings, read from properties.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use epoka_controller::ControllerConfig;
use epoka_proto::config::{TOPIC_KEYS, nearest, topic_key};
use epoka_proto::v1;

use super::properties::Properties;
use crate::topic_spec::TopicSpec;

/// The settings that concern the controller itself: name, default, meaning.
pub const KEYS: &[(&str, &str, &str)] = &[
    (
        "node.id",
        "",
        "This controller's id: a number of 0 or more, unique among the controllers.",
    ),
    (
        "listeners",
        "CONTROLLER://127.0.0.1:9093",
        "Where the controller binds: CONTROLLER://host:port.",
    ),
    ("log.dirs", "data", "The controller's directory."),
    (
        "controller.quorum.voters",
        "",
        "id@host:port of every controller, separated by commas; empty: this one alone.",
    ),
    (
        "broker.session.timeout.ms",
        "9000",
        "A broker that is silent for longer is fenced.",
    ),
    (
        "epoka.stream.grace.ms",
        "30",
        "How long a broker whose heartbeat stream broke may take to open another.",
    ),
    (
        "epoka.topics",
        "",
        "Topics to make where they are missing, once enough brokers serve: NAME:PARTITIONS:RF[:key=value,...], separated by semicolons.",
    ),
    (
        "epoka.restore.brokers",
        "0",
        "Not 0: a controller that lost its metadata rebuilds it from the data of so many brokers, which must be all that hold any.",
    ),
    (
        "auto.leader.rebalance.enable",
        "true",
        "Whether leaderships are moved back to preferred leaders from time to time.",
    ),
    (
        "leader.imbalance.check.interval.seconds",
        "300",
        "How often they are.",
    ),
];

/// Cluster-wide defaults that are no topic setting.
const CLUSTER_KEYS: [&str; 2] = ["num.partitions", "default.replication.factor"];

/// The names of every setting a controller understands, cluster-wide defaults included.
pub fn names() -> impl Iterator<Item = &'static str> + Clone {
    let topic = TOPIC_KEYS
        .iter()
        .flat_map(|k| [Some(k.name), k.broker_synonym]);
    let own = KEYS.iter().map(|(name, _, _)| *name);
    own.chain(CLUSTER_KEYS).chain(topic.flatten())
}

/// Reads a controller's settings.
///
/// # Errors
/// A sentence that names the setting and what is wrong with it.
pub fn from_properties(properties: &Properties) -> Result<ControllerConfig, String> {
    let text = |name: &str| {
        let default = KEYS
            .iter()
            .find(|(key, _, _)| *key == name)
            .map_or("", |(_, default, _)| default);
        properties.get(name).map_or(default, |v| v.trim())
    };
    let id = text("node.id");
    let id = match id.parse::<i32>() {
        Ok(id) if id >= 0 => id,
        _ if id.is_empty() => return Err("node.id must be set".to_owned()),
        _ => {
            return Err(format!(
                "node.id is `{id}`, which is not a number of 0 or more"
            ));
        }
    };
    let number = |name: &str| {
        let wrong = |_| {
            format!(
                "{name} is `{}`, which is not a number it can take",
                text(name)
            )
        };
        text(name).parse::<u32>().map(u64::from).map_err(wrong)
    };
    let mut config = ControllerConfig::new(id, address(text("listeners"))?, text("log.dirs"));
    config.voters = voters(text("controller.quorum.voters"))?;
    if !config.voters.is_empty() && config.voters.iter().all(|(voter, _)| *voter != id) {
        return Err(format!(
            "controller.quorum.voters is `{}`, which does not name this controller: add {id}@HOST:{}, with the address at which \
             the others reach it, there and at every other controller",
            text("controller.quorum.voters"),
            config.listen.port()
        ));
    }
    config.session_timeout = Duration::from_millis(number("broker.session.timeout.ms")?.max(1));
    config.stream_grace = Duration::from_millis(number("epoka.stream.grace.ms")?);
    config.restore_brokers = number("epoka.restore.brokers")? as usize;
    let balance = Duration::from_secs(number("leader.imbalance.check.interval.seconds")?.max(1));
    config.balance_interval = match text("auto.leader.rebalance.enable") {
        "true" => Some(balance),
        "false" => None,
        other => {
            return Err(format!(
                "auto.leader.rebalance.enable is `{other}`; it must be true or false"
            ));
        }
    };
    config.initial_configs = cluster_defaults(properties)?;
    config.topics = topics(text("epoka.topics"))?;
    Ok(config)
}

/// Everything that is not the controller's own is a default for the whole cluster, under its topic name.
fn cluster_defaults(properties: &Properties) -> Result<BTreeMap<String, String>, String> {
    let own = |name: &str| KEYS.iter().any(|(key, _, _)| *key == name);
    let mut defaults = BTreeMap::new();
    for (name, value) in properties.iter().filter(|(name, _)| !own(name)) {
        if CLUSTER_KEYS.contains(&name.as_str()) {
            if value.trim().parse::<u32>().is_ok_and(|n| n > 0) {
                defaults.insert(name.clone(), value.clone());
                continue;
            }
            return Err(format!(
                "{name} is `{value}`, which is not a number of 1 or more"
            ));
        }
        let by_synonym = || TOPIC_KEYS.iter().find(|k| k.broker_synonym == Some(name));
        let Some(key) = topic_key(name).or_else(by_synonym) else {
            let near = nearest(name, names());
            let hint = near
                .map(|n| format!("; did you mean `{n}`?"))
                .unwrap_or_default();
            return Err(format!("`{name}` is not a controller property{hint}"));
        };
        key.check(value)?;
        defaults.insert(key.name.to_owned(), value.clone());
    }
    Ok(defaults)
}

fn address(text: &str) -> Result<SocketAddr, String> {
    use std::net::ToSocketAddrs as _;
    let address = text.rsplit_once("://").map_or(text, |(_, address)| address);
    let resolved = address
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next());
    resolved.ok_or_else(|| format!("listeners is `{text}`, which is not CONTROLLER://HOST:PORT"))
}

fn topics(text: &str) -> Result<Vec<v1::NewTopic>, String> {
    let specs = text.split(';').map(str::trim).filter(|t| !t.is_empty());
    let topics: Vec<_> = specs
        .map(|spec| {
            spec.parse::<TopicSpec>()
                .map_err(|e| format!("epoka.topics: {e}"))
        })
        .map(|spec| spec.map(|TopicSpec(topic)| v1::NewTopic::from(topic)))
        .collect::<Result<_, _>>()?;
    let repeated =
        (1..topics.len()).find(|&i| topics[..i].iter().any(|t| t.name == topics[i].name));
    match repeated {
        Some(i) => Err(format!("epoka.topics names {} twice", topics[i].name)),
        None => Ok(topics),
    }
}

fn voters(text: &str) -> Result<Vec<(i32, String)>, String> {
    let voters = text.split(',').map(str::trim).filter(|v| !v.is_empty());
    let read = |voter: &str| {
        let (id, address) = voter.split_once('@')?;
        let (_host, port) = address.rsplit_once(':')?;
        port.parse::<u16>().ok()?;
        Some((id.parse().ok()?, address.to_owned()))
    };
    voters
        .map(|v| {
            read(v).ok_or_else(|| {
                format!("controller.quorum.voters: `{v}` is not of the form id@host:port")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<ControllerConfig, String> {
        let mut properties = Properties::from([("node.id".to_owned(), "1".to_owned())]);
        properties.extend(
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        );
        from_properties(&properties)
    }

    #[test]
    fn settings_are_read_with_their_defaults() {
        let config = read(&[
            ("listeners", "CONTROLLER://127.0.0.1:7001"),
            (
                "controller.quorum.voters",
                "1@127.0.0.1:7001, 2@127.0.0.1:7002",
            ),
            ("min.insync.replicas", "2"),
            ("log.segment.bytes", "1048576"),
            ("num.partitions", "3"),
            ("epoka.restore.brokers", "3"),
            (
                "epoka.topics",
                "orders:3:3:min.insync.replicas=2; audit:1:1;",
            ),
        ])
        .expect("complete");
        let topics: Vec<_> = config
            .topics
            .iter()
            .map(|t| {
                (
                    t.name.as_str(),
                    t.partitions,
                    t.replication_factor,
                    t.configs.len(),
                )
            })
            .collect();
        assert_eq!(topics, [("orders", 3, 3, 1), ("audit", 1, 1, 0)]);
        assert_eq!(config.restore_brokers, 3);
        assert_eq!(config.listen.port(), 7001);
        assert_eq!(config.voters[1], (2, "127.0.0.1:7002".to_owned()));
        assert_eq!(config.session_timeout, Duration::from_secs(9));
        let defaults: Vec<_> = config
            .initial_configs
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let expected = [
            ("min.insync.replicas", "2"),
            ("num.partitions", "3"),
            ("segment.bytes", "1048576"),
        ];
        assert_eq!(defaults, expected);
    }

    #[test]
    fn a_wrong_setting_is_named_with_its_remedy() {
        for (key, value, says) in [
            ("node.id", "-1", "not a number of 0 or more"),
            ("node.id", "", "must be set"),
            ("listeners", "nowhere", "CONTROLLER://HOST:PORT"),
            ("controller.quorum.voters", "127.0.0.1:7001", "id@host:port"),
            ("broker.session.timeout.ms", "soon", "not a number"),
            (
                "min.insync.replica",
                "2",
                "did you mean `min.insync.replicas`",
            ),
            ("min.insync.replicas", "none", "min.insync.replicas"),
            ("num.partitions", "0", "1 or more"),
            (
                "controller.quorum.voters",
                "2@127.0.0.1:7001",
                "does not name this controller: add 1@HOST:9093",
            ),
            ("epoka.topics", "or ders:1:1", "epoka.topics: `or ders:1:1`"),
            ("epoka.topics", "orders", "epoka.topics: `orders`"),
            ("epoka.topics", "a:1:1;a:2:1", "names a twice"),
            ("epoka.restore.brokers", "all", "not a number"),
            ("auto.leader.rebalance.enable", "yes", "true or false"),
        ] {
            let error = read(&[(key, value)]).expect_err(key);
            assert!(error.contains(says), "{error}");
        }
    }
}
