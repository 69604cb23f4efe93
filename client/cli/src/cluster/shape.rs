//! How many nodes a local cluster gets and on which ports: what is asked for, measured against what the directory has.

use super::description::Description;
use super::directory::Directory;
use super::launch::Plan;
use super::ports::Reservation;
use crate::failure::{Failure, Outcome};
use crate::target::Kind;

/// What is wanted, checked against the directory and the ports before anything is changed.
pub struct Shape {
    /// The cluster as it was; `None` for a new one.
    pub before: Option<Description>,
    /// How many controllers.
    pub controllers: i32,
    /// How many brokers.
    pub brokers: i32,
    /// The brokers' Kafka ports.
    pub kafka: Vec<Reservation>,
}

impl Shape {
    /// Finds out; takes the ports, changes nothing.
    ///
    /// # Errors
    /// The directory has another shape, or has lost a part; a port is taken.
    pub fn find(directory: &Directory, plan: &Plan) -> Outcome<Self> {
        let before = match plan.fresh {
            true => None,
            false => Description::read(directory.path())?,
        };
        let controllers = count(Kind::Controller, plan.controllers, before.as_ref(), 1)?;
        let brokers = count(Kind::Broker, plan.brokers, before.as_ref(), 3)?;
        if !plan.fresh {
            let restoring =
                |(name, value): &(String, String)| name == "epoka.restore.brokers" && value != "0";
            directory.check_controllers(controllers, plan.set.iter().any(restoring))?;
        }
        Ok(Self {
            before,
            controllers,
            brokers,
            kafka: kafka_ports(plan.port, brokers)?,
        })
    }
}

/// How many nodes of a kind. A cluster can gain brokers between two lives, but its data names the ones it had.
fn count(
    kind: Kind,
    wanted: Option<i32>,
    before: Option<&Description>,
    default: i32,
) -> Outcome<i32> {
    let had = before.map(|b| i32::try_from(b.nodes_of(kind).count()).unwrap_or(i32::MAX));
    let Some(had) = had else {
        return Ok(wanted.unwrap_or(default));
    };
    let wanted = wanted.unwrap_or(had);
    let allowed = match kind {
        Kind::Broker => wanted >= had,
        Kind::Controller => wanted == had,
    };
    if allowed {
        return Ok(wanted);
    }
    Err(Failure::wrong(format!(
        "the cluster in this directory has {had} {kind}{}, not {wanted}: leave out --{kind}s, or start over with --fresh",
        if had == 1 { "" } else { "s" }
    )))
}

fn kafka_ports(first: u16, brokers: i32) -> Outcome<Vec<Reservation>> {
    (1..=brokers)
        .map(|id| {
            if first == 0 {
                return Reservation::any();
            }
            let port = i32::from(first) + id - 1;
            let port = u16::try_from(port).map_err(|_| {
                Failure::usage(format!(
                    "port {port} for broker {id} does not exist; choose a lower --port"
                ))
            })?;
            Reservation::of(port, &format!("broker {id}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cluster::NodeDescription;

    #[test]
    fn a_cluster_may_gain_brokers_and_lose_none() {
        let node = |kind, id| NodeDescription {
            kind,
            id,
            kafka: None,
            grpc: String::new(),
            log_dirs: vec![],
            output: PathBuf::new(),
        };
        let before = Description {
            supervisor_pid: 1,
            supervisor: String::new(),
            bootstrap: String::new(),
            nodes: vec![
                node(Kind::Controller, 1),
                node(Kind::Broker, 1),
                node(Kind::Broker, 2),
            ],
        };
        let count = |kind, wanted| count(kind, wanted, Some(&before), 3).map_err(|e| e.to_string());
        assert_eq!(count(Kind::Broker, None), Ok(2));
        assert_eq!(count(Kind::Broker, Some(3)), Ok(3));
        assert!(
            count(Kind::Broker, Some(1))
                .is_err_and(|e| e.contains("has 2 brokers, not 1") && e.contains("--fresh"))
        );
        assert!(
            count(Kind::Controller, Some(3)).is_err_and(|e| e.contains("has 1 controller, not 3"))
        );
        assert_eq!(super::count(Kind::Broker, None, None, 3), Ok(3));
    }
}
