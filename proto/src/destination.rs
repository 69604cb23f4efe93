//! Whom a gRPC call is meant for. An address can pass to another node while a connection to it is being made, as the addresses
//! of containers do when several start at once; the connection then leads to the wrong node for as long as both ends live. So a
//! call that is meant for one node names it, and every other node refuses the call.

use std::fmt::Display;

use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use crate::ids::BrokerId;

/// The node the call is meant for, as events name it: `broker-1`.
const NODE: &str = "epoka-to";
/// The cluster it must belong to.
const CLUSTER: &str = "epoka-cluster";
/// Marks the refusal of a call that reached somebody else.
const MISROUTED: &str = "epoka-misrouted";

/// How a broker is named.
pub fn broker(id: BrokerId) -> String {
    format!("broker-{id}")
}

/// How a controller is named.
pub fn controller(id: impl Display) -> String {
    format!("controller-{id}")
}

/// Whom a call is meant for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination<'a> {
    /// The one node that may answer; any, if none is named.
    pub node: Option<&'a str>,
    /// The cluster it must be of, where the caller knows its own.
    pub cluster: Option<&'a str>,
}

impl Destination<'_> {
    /// Says so in the metadata of a call.
    pub fn write(self, metadata: &mut MetadataMap) {
        for (key, value) in [(NODE, self.node), (CLUSTER, self.cluster)] {
            // An id that is no header value was never given out; whoever has it is told nothing then, and takes the call.
            if let Some(Ok(value)) = value.map(str::parse) {
                metadata.insert(key, value);
            }
        }
    }
}

/// Checks a call's metadata at the node of this name. It may not know its cluster yet, and cannot be of another one then.
///
/// # Errors
/// `UNAVAILABLE`, with [`is_misrouted`], when the call is meant for another node.
pub fn check(
    metadata: &MetadataMap,
    node: &str,
    cluster: impl FnOnce() -> Option<String>,
) -> Result<(), Status> {
    let meant = |key| metadata.get(key).and_then(|value| value.to_str().ok());
    let reason = match (meant(NODE), meant(CLUSTER)) {
        (Some(other), _) if other != node => format!("this is {node}, not {other}"),
        (_, Some(other)) if cluster().is_some_and(|own| own != other) => {
            format!("this is {node} of another cluster than {other}")
        }
        _ => return Ok(()),
    };
    let mut status = Status::unavailable(reason);
    let yes = "1".parse().expect("ascii");
    status.metadata_mut().insert(MISROUTED, yes);
    Err(status)
}

/// Checks every call of a server, as an interceptor.
pub fn checked<C>(
    node: String,
    cluster: C,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone
where
    C: Fn() -> Option<String> + Clone,
{
    move |request: Request<()>| {
        check(request.metadata(), &node, &cluster)?;
        Ok(request)
    }
}

/// Whether an answer says that the call reached the wrong node. The connection is of no use then: a new one finds out where the
/// node is now.
pub fn is_misrouted(answer: &MetadataMap) -> bool {
    answer.contains_key(MISROUTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(node: Option<&str>, cluster: Option<&str>) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        Destination { node, cluster }.write(&mut metadata);
        metadata
    }

    #[test]
    fn a_call_is_taken_by_the_node_it_is_meant_for_and_by_no_other() {
        let cases = [
            (meant(None, None), true),
            (meant(None, Some("A")), true),
            (meant(Some("broker-1"), Some("A")), true),
            (meant(Some("broker-1"), None), true),
            (meant(Some("broker-2"), Some("A")), false),
            (meant(Some("broker-2"), None), false),
            (meant(Some("controller-1"), None), false),
            (meant(Some("broker-1"), Some("B")), false),
            (meant(None, Some("B")), false),
        ];
        for (metadata, taken) in cases {
            let answer = check(&metadata, "broker-1", || Some("A".to_owned()));
            assert_eq!(answer.is_ok(), taken, "{metadata:?}");
            if let Err(status) = answer {
                assert!(is_misrouted(status.metadata()), "{status:?}");
            }
        }
        // A node that has not been told its cluster yet cannot be of another one.
        let newcomer = check(&meant(Some("broker-1"), Some("A")), "broker-1", || None);
        assert!(newcomer.is_ok());
        assert!(!is_misrouted(Status::unavailable("gone").metadata()));
    }
}
