use std::fs;

use epoka_log::{LogConfig, LogDir};
use epoka_proto::batch::BatchBuilder;
use epoka_proto::compression::Compression;
use epoka_proto::ids::{PartitionEpoch, TopicId};
use epoka_proto::metadata::Recovery;
use epoka_proto::v1::event::Kind;

use super::*;
use crate::replica::Reader;

/// A partition over a real log, and what it asks of its node.
struct Bench {
    dir: tempfile::TempDir,
    partition: Partition,
    errands: mpsc::UnboundedReceiver<(PartitionId, Errand)>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (log_dir, _) = LogDir::open(dir.path(), BrokerId(1), None).expect("opened");
        let id = PartitionId {
            topic: TopicId::random(),
            partition: 0,
        };
        let name = TopicPartition::new("orders", 0);
        let log = log_dir.open_log(&name, id.topic, LogConfig::default(), 0);
        let (log, _) = log.expect("a new log");
        let (sender, errands) = mpsc::unbounded_channel();
        let around = Surroundings {
            me: BrokerId(1),
            clock: Clock::start(),
            events: EventLog::new("broker-1"),
            errands: sender,
            replica_lag_time_max_ms: 30_000,
        };
        let config = Arc::new(TopicConfig::default());
        let partition = Partition::new(id, name, around, config, Ok(log), Offset::ZERO);
        Self {
            dir,
            partition,
            errands,
        }
    }

    /// Broker 1 leads, with these in the ISR.
    fn lead(&self, isr: &[i32]) {
        let isr: Vec<BrokerId> = isr.iter().map(|&b| BrokerId(b)).collect();
        let eligible = isr.iter().map(|&b| (b, BrokerEpoch(7))).collect();
        let assignment = Assignment {
            replicas: isr.clone(),
            isr,
            elr: vec![],
            last_known_elr: vec![],
            offline: vec![],
            adding: vec![],
            removing: vec![],
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            recovery: Recovery::Recovered,
            min_isr: 1,
        };
        self.partition.assign(Arc::new(assignment), eligible);
    }

    fn produce(&self) -> Pending {
        let timeout = Duration::from_secs(10);
        self.partition.begin_produce(batch(), Acks::Leader, timeout)
    }

    fn read(&self, reader: Reader, offset: i64) -> Result<Read, ErrorCode> {
        let request = ReadRequest {
            reader,
            current_leader_epoch: Some(LeaderEpoch(0)),
            offset: Offset(offset),
            last_fetched_epoch: None,
            again: false,
        };
        self.partition.read(request, 1 << 20, true)
    }

    fn errands(&mut self) -> Vec<Errand> {
        std::iter::from_fn(|| self.errands.try_recv().ok().map(|(_, errand)| errand)).collect()
    }
}

fn batch() -> Bytes {
    let mut batch = BatchBuilder::new(Compression::None);
    batch.append(wall_clock_ms(), None, Some(b"value"), &[]);
    batch.finish()
}

#[tokio::test]
async fn what_cannot_be_read_takes_the_replica_out_of_service_once() {
    let mut bench = Bench::new();
    bench.lead(&[1]);
    bench.produce().outcome().await.expect("appended");
    let segment = bench.dir.path().join("orders-0/00000000000000000000.log");
    let mut bytes = fs::read(&segment).expect("a segment");
    bytes[16] = 99; // no such magic
    fs::write(&segment, bytes).expect("written");

    let read = bench.read(Reader::Consumer, 0).map(|_| ());
    assert_eq!(read, Err(ErrorCode::KafkaStorageError));
    let again = bench.read(Reader::Consumer, 0).map(|_| ());
    assert_eq!(again, Err(ErrorCode::KafkaStorageError));
    bench
        .partition
        .fail("another reader saw it too".into(), false);

    let offline = bench.partition.offline().expect("offline");
    assert!(offline.unreadable, "{offline:?}");
    assert!(offline.reason.contains("orders-0"), "{offline:?}");
    let errands = bench.errands();
    assert!(matches!(errands[..], [Errand::Withdraw]), "{errands:?}");
    let told = bench.partition.around.events.after(0);
    let offline = |e: &&epoka_proto::v1::Event| matches!(e.kind, Some(Kind::ReplicaOffline(_)));
    assert_eq!(told.iter().filter(offline).count(), 1, "{told:?}");
    let produced = bench.produce().outcome().await;
    assert_eq!(produced, Err(ErrorCode::KafkaStorageError));
}

#[tokio::test]
async fn a_partition_that_left_sends_everybody_elsewhere() {
    let mut bench = Bench::new();
    bench.lead(&[1, 2]);
    let timeout = Duration::from_secs(600);
    let waiting = bench.partition.begin_produce(batch(), Acks::All, timeout);
    let waiter = ReadWaiter::new();
    bench.partition.watch(&waiter, 3, Interest::HighWatermark);
    assert!(bench.partition.close().is_some());

    let elsewhere = Err(ErrorCode::NotLeaderOrFollower);
    assert_eq!(waiting.outcome().await, elsewhere);
    assert_eq!(waiter.changed().await, [3]);
    assert_eq!(bench.produce().outcome().await, elsewhere);
    assert!(bench.partition.close().is_none());
    // Someone who still reads what has been closed makes no failure of it.
    bench.partition.fail("too late".into(), true);
    assert_eq!(bench.partition.offline(), None);
    assert!(bench.errands().is_empty());
}

#[tokio::test]
async fn an_append_wakes_followers_and_a_commit_consumers() {
    let bench = Bench::new();
    bench.lead(&[1, 2]);
    let (follower, consumer) = (ReadWaiter::new(), ReadWaiter::new());
    bench.partition.watch(&follower, 0, Interest::LogEnd);
    bench.partition.watch(&consumer, 0, Interest::HighWatermark);
    bench.produce().outcome().await.expect("appended");
    assert_eq!(follower.changed().await, [0]);
    let parked = tokio::time::timeout(Duration::ZERO, consumer.changed()).await;
    assert!(parked.is_err(), "nothing is committed yet");

    let fetch = Reader::Follower {
        broker: BrokerId(2),
        epoch: BrokerEpoch(7),
    };
    bench.partition.watch(&follower, 0, Interest::LogEnd);
    bench.read(fetch, 1).expect("a fetch");
    assert_eq!(consumer.changed().await, [0]);
    let parked = tokio::time::timeout(Duration::ZERO, follower.changed()).await;
    assert!(parked.is_err(), "nothing was appended");
}

#[tokio::test]
async fn a_batch_that_no_message_between_brokers_could_carry_is_refused() {
    let bench = Bench::new();
    bench.lead(&[1]);
    let bytes = Bytes::from(vec![0; LARGEST_BATCH + 1]);
    let timeout = Duration::from_secs(1);
    let refused = bench.partition.begin_produce(bytes, Acks::Leader, timeout);
    assert_eq!(refused.outcome().await, Err(ErrorCode::MessageTooLarge));
}
