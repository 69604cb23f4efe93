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

/// Says in the metadata of a call whom it is meant for: a node, and its cluster where the caller knows it, else empty.
pub fn address(metadata: &mut MetadataMap, node: &str, cluster: &str) {
    for (key, value) in [(NODE, node), (CLUSTER, cluster)] {
        // An id that is no header value was never registered; the node alone tells enough then.
        if let Ok(value) = value.parse()
            && !node.is_empty()
        {
            metadata.insert(key, value);
        }
    }
}

/// Checks a call's metadata at the node of this name and cluster. A call that names nobody is for anybody.
///
/// # Errors
/// `UNAVAILABLE`, with [`is_misrouted`], when the call is meant for another node.
pub fn check(metadata: &MetadataMap, node: &str, cluster: &str) -> Result<(), Status> {
    let meant = |key| metadata.get(key).and_then(|value| value.to_str().ok());
    let other_node = meant(NODE).filter(|meant| *meant != node);
    let other_cluster = meant(CLUSTER)
        .filter(|meant| !meant.is_empty() && !cluster.is_empty() && *meant != cluster);
    let reason = match (other_node, other_cluster) {
        (None, None) => return Ok(()),
        (Some(other), _) => format!("this is {node}, not {other}"),
        (None, Some(other)) => format!("this is {node} of another cluster than {other}"),
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
    C: Fn() -> String + Clone,
{
    move |request: Request<()>| {
        let metadata = request.metadata();
        if metadata.contains_key(NODE) {
            check(metadata, &node, &cluster())?;
        }
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

    fn meant(node: &str, cluster: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        address(&mut metadata, node, cluster);
        metadata
    }

    #[test]
    fn a_call_is_taken_by_the_node_it_is_meant_for_and_by_no_other() {
        let cases = [
            (MetadataMap::new(), true),
            (meant("broker-1", "A"), true),
            (meant("broker-1", ""), true),
            (meant("broker-2", "A"), false),
            (meant("broker-2", ""), false),
            (meant("broker-1", "B"), false),
            (meant("controller-1", ""), false),
        ];
        for (metadata, taken) in cases {
            let answer = check(&metadata, "broker-1", "A");
            assert_eq!(answer.is_ok(), taken, "{metadata:?}");
            if let Err(status) = answer {
                assert!(is_misrouted(status.metadata()), "{status:?}");
            }
        }
        // A node that has not been told its cluster yet cannot be of another one.
        assert!(check(&meant("broker-1", "A"), "broker-1", "").is_ok());
        assert!(!is_misrouted(Status::unavailable("gone").metadata()));
    }
}
