//! Lost metadata, rebuilt before the first broker is admitted: offers are gathered until there are enough of them. What comes of
//! them is decided in `cluster`.

use std::time::{SystemTime, UNIX_EPOCH};

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::BrokerId;
use epoka_proto::metadata::Image;
use tonic::Status;

use crate::cluster::{Command, Offer, Offers, Refusal, Reply, Restoration, is_vacant};
use crate::shared::Shared;

/// Whether this controller waits for brokers to rebuild its metadata from.
pub(super) fn is_awaited(shared: &Shared, image: &Image) -> bool {
    shared.config.restore_brokers > 0 && is_vacant(image)
}

/// Has lost metadata rebuilt before a broker is admitted, if this controller was told to. A refusal while that cannot be done
/// yet: the broker asks again.
pub(super) async fn restore_first(
    shared: &Shared,
    broker: BrokerId,
    offer: Option<Offer>,
) -> Result<Result<(), Refusal>, Status> {
    if !shared.metadata.read(|c| is_awaited(shared, c.image())) {
        return Ok(Ok(()));
    }
    let restoration = match gather(shared, broker, offer) {
        Ok(restoration) => restoration,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let restored = shared.propose(Command::Restore(restoration.clone()));
    // An error means that another call was faster.
    if let Reply::Done(Ok(())) = restored.await?.reply {
        report(&restoration);
        *shared.offers.lock() = Offers::default();
    }
    Ok(Ok(()))
}

fn gather(shared: &Shared, broker: BrokerId, offer: Option<Offer>) -> Result<Restoration, Refusal> {
    let wanted = shared.config.restore_brokers;
    let mut offers = shared.offers.lock();
    let Some(offer) = offer else {
        offers.withdraw(broker);
        return Err(Refusal::new(
            ErrorCode::BrokerNotAvailable,
            format!(
                "the controller rebuilds its metadata from {wanted} broker(s) that hold data first; broker {broker} belongs to \
                 no cluster yet. To begin a new cluster, start the controller without epoka.restore.brokers"
            ),
        ));
    };
    let (cluster, held) = (offer.cluster_id.clone(), offer.holdings.len());
    let news = offers.take(broker, offer)?;
    let here = offers.brokers();
    if news {
        tracing::info!(%broker, cluster, replicas = held, "offers its data; {} of {wanted} broker(s) have", here.len());
    }
    if here.len() < wanted {
        let here: Vec<_> = here.iter().map(BrokerId::to_string).collect();
        return Err(Refusal::new(
            ErrorCode::BrokerNotAvailable,
            format!(
                "the controller rebuilds its metadata from {wanted} brokers, and waits: {} of them have come ({})",
                here.len(),
                here.join(", ")
            ),
        ));
    }
    let rebuilt = offers.rebuild(&shared.config.initial_configs, now_ms());
    rebuilt.map_err(|why| {
        if news {
            tracing::error!("the metadata cannot be rebuilt: {why}");
        }
        let message = format!("the metadata cannot be rebuilt: {why}");
        Refusal::new(ErrorCode::InvalidRequest, message)
    })
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(0))
}

fn report(restoration: &Restoration) {
    let topics: Vec<_> = restoration
        .topics
        .iter()
        .map(|t| format!("{} ({})", t.name, t.partitions.len()))
        .collect();
    tracing::warn!(
        cluster = restoration.cluster_id,
        "metadata rebuilt from the brokers' data. Topics and their partitions: {}. Settings of topics are lost: set them again \
         with `epoka topic alter NAME --config KEY=VALUE`",
        topics.join(", ")
    );
    for topic in &restoration.topics {
        let numbered = (0..).zip(&topic.partitions);
        let without: Vec<String> = numbered
            .filter(|(_, p)| p.eligible.is_empty())
            .map(|(number, _): (i32, _)| format!("{}-{number}", topic.name))
            .collect();
        if !without.is_empty() {
            tracing::error!(
                "nobody leads {}: no broker holds it, or what the greatest log holds may not be all that was committed (another cannot \
                 be read, or knows of more). Bring that data back; or have what the \
                 others hold served, and lose the rest, with `epoka topic alter {} --config unclean.leader.election.enable=true`",
                without.join(", "),
                topic.name
            );
        }
    }
}
