//! The Kafka listener over a real socket: a controller and a broker in this process, and a client made of nothing but
//! `kafka-protocol`'s encoders. Every API in every version it advertises; the quirks; garbage.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use epoka_broker::{Broker, BrokerConfig};
use epoka_controller::{Controller, ControllerConfig};
use epoka_proto::batch::{BatchBuilder, batches};
use epoka_proto::compression::Compression;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{ProducerEpoch, ProducerId};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message, Request, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

struct Cluster {
    controller: Controller,
    broker: Broker,
    _files: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let mut config = ControllerConfig::new(
            1,
            "127.0.0.1:0".parse().expect("address"),
            files.path().join("controller"),
        );
        config.session_timeout = Duration::from_secs(60);
        let controller = epoka_controller::start(config).await.expect("a controller");
        let properties = BTreeMap::from([
            ("node.id".to_owned(), "1".to_owned()),
            (
                "log.dirs".to_owned(),
                files.path().join("broker").display().to_string(),
            ),
            ("listeners".to_owned(), "PLAINTEXT://127.0.0.1:0".to_owned()),
            (
                "controller.quorum.bootstrap.servers".to_owned(),
                controller.local_addr().to_string(),
            ),
        ]);
        let config = BrokerConfig::from_properties(&properties).expect("complete");
        let broker = epoka_broker::start(config).await.expect("a broker");
        broker.unfenced().await;
        Self {
            controller,
            broker,
            _files: files,
        }
    }

    async fn client(&self) -> Client {
        let stream = TcpStream::connect(self.broker.kafka_addresses()[0])
            .await
            .expect("connected");
        Client {
            stream,
            correlation_id: 0,
        }
    }

    async fn stop(self) {
        self.broker.shutdown().await;
        self.controller.shutdown().await;
    }
}

struct Client {
    stream: TcpStream,
    correlation_id: i32,
}

impl Client {
    async fn send<R: Request>(&mut self, version: i16, request: &R) {
        self.correlation_id += 1;
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation_id)
            .with_client_id(Some(s("wire")));
        let mut body = BytesMut::new();
        header
            .encode(&mut body, R::header_version(version))
            .expect("header");
        request.encode(&mut body, version).expect("request");
        let mut frame = BytesMut::new();
        frame.put_u32(body.len() as u32);
        frame.put_slice(&body);
        self.stream.write_all(&frame).await.expect("sent");
    }

    async fn receive<M: Message + Decodable + HeaderVersion>(&mut self, version: i16) -> (i32, M) {
        let len = self.stream.read_u32().await.expect("an answer");
        let mut frame = vec![0; len as usize];
        self.stream.read_exact(&mut frame).await.expect("all of it");
        let mut frame = Bytes::from(frame);
        let header =
            ResponseHeader::decode(&mut frame, M::header_version(version)).expect("header");
        let body = M::decode(&mut frame, version).expect("a response");
        assert!(!frame.has_remaining(), "{} bytes too many", frame.len());
        (header.correlation_id, body)
    }

    async fn call<R: Request>(&mut self, version: i16, request: R) -> R::Response {
        self.send(version, &request).await;
        let (correlation_id, response) = self.receive(version).await;
        assert_eq!(correlation_id, self.correlation_id);
        response
    }

    async fn create(
        &mut self,
        name: &'static str,
        partitions: i32,
        configs: &[(&'static str, &'static str)],
    ) -> Uuid {
        let configs = configs.iter().map(|&(key, value)| {
            create_topics_request::CreatableTopicConfig::default()
                .with_name(s(key))
                .with_value(Some(s(value)))
        });
        let topic = create_topics_request::CreatableTopic::default()
            .with_name(TopicName(s(name)))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(5000);
        let created = self.call(7, request).await.topics.remove(0);
        assert_eq!(created.error_code, 0, "{:?}", created.error_message);
        created.topic_id
    }

    async fn produce(
        &mut self,
        topic: &'static str,
        acks: i16,
        batch: Bytes,
    ) -> produce_response::PartitionProduceResponse {
        let mut response = self
            .call(9, produce(9, topic, Uuid::nil(), acks, batch))
            .await;
        response.responses.remove(0).partition_responses.remove(0)
    }

    /// Whether the broker has closed the connection.
    async fn is_closed(&mut self) -> bool {
        let read =
            tokio::time::timeout(Duration::from_secs(10), self.stream.read(&mut [0; 1])).await;
        matches!(read.expect("closed in time"), Ok(0) | Err(_))
    }
}

fn s(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn batch(values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for value in values {
        builder.append(1000, None, Some(value.as_bytes()), &[]);
    }
    builder.finish()
}

fn produce(version: i16, topic: &'static str, id: Uuid, acks: i16, batch: Bytes) -> ProduceRequest {
    let data = produce_request::PartitionProduceData::default().with_records(Some(batch));
    let mut topic_data =
        produce_request::TopicProduceData::default().with_partition_data(vec![data]);
    if version >= 13 {
        topic_data.topic_id = id;
    } else {
        topic_data.name = TopicName(s(topic));
    }
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(5000)
        .with_topic_data(vec![topic_data])
}

fn fetch(version: i16, topic: &'static str, id: Uuid, offset: i64) -> FetchRequest {
    let partition = fetch_request::FetchPartition::default()
        .with_fetch_offset(offset)
        .with_partition_max_bytes(1 << 20)
        .with_current_leader_epoch(-1);
    let mut topic_data = fetch_request::FetchTopic::default().with_partitions(vec![partition]);
    if version >= 13 {
        topic_data.topic_id = id;
    } else {
        topic_data.topic = TopicName(s(topic));
    }
    FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_bytes(1 << 20)
        .with_min_bytes(1)
        .with_max_wait_ms(100)
        .with_topics(vec![topic_data])
}

fn records(response: &FetchResponse) -> Bytes {
    response.responses[0].partitions[0]
        .records
        .clone()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_advertised_version_of_every_api_is_answered() {
    let cluster = Cluster::start().await;
    let mut client = cluster.client().await;
    let id = client.create("orders", 2, &[]).await;
    let advertised: ApiVersionsResponse = client.call(3, ApiVersionsRequest::default()).await;
    let range = |key: ApiKey| {
        let api = advertised
            .api_keys
            .iter()
            .find(|a| a.api_key == key as i16)
            .expect("advertised");
        // Produce says 0 for librdkafka's sake.
        let min = if key == ApiKey::Produce {
            3
        } else {
            api.min_version
        };
        min..=api.max_version
    };
    let mut produced = 0;
    for version in range(ApiKey::Produce) {
        let response = client
            .call(version, produce(version, "orders", id, -1, batch(&["v"])))
            .await;
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!(
            (partition.error_code, partition.base_offset),
            (0, produced),
            "version {version}"
        );
        produced += 1;
    }
    for version in range(ApiKey::Fetch) {
        let response = client.call(version, fetch(version, "orders", id, 0)).await;
        let partition = &response.responses[0].partitions[0];
        assert_eq!(
            (partition.error_code, partition.high_watermark),
            (0, produced),
            "version {version}"
        );
        assert_eq!(batches(&records(&response)).count() as i64, produced);
    }
    for version in range(ApiKey::Metadata) {
        let request =
            MetadataRequest::default().with_topics(if version > 0 { None } else { Some(vec![]) });
        let response = client.call(version, request).await;
        assert_eq!(response.brokers.len(), 1);
        assert_eq!(response.topics[0].partitions.len(), 2, "version {version}");
        assert_eq!(response.topics[0].partitions[0].leader_id.0, 1);
    }
    for version in range(ApiKey::ListOffsets) {
        for (timestamp, since, expected) in [
            (-1, 1, produced),
            (-2, 1, 0),
            (500, 1, 0),
            (5000, 1, -1),
            (-3, 7, 0),
            (-4, 8, 0),
            (-5, 9, -1),
        ] {
            if version < since {
                continue;
            }
            let partition = list_offsets_request::ListOffsetsPartition::default()
                .with_timestamp(timestamp)
                .with_current_leader_epoch(-1);
            let topic = list_offsets_request::ListOffsetsTopic::default()
                .with_name(TopicName(s("orders")))
                .with_partitions(vec![partition]);
            let request = ListOffsetsRequest::default()
                .with_replica_id((-1).into())
                .with_topics(vec![topic]);
            let response = client.call(version, request).await;
            let partition = &response.topics[0].partitions[0];
            assert_eq!(
                (partition.error_code, partition.offset),
                (0, expected),
                "{timestamp} in version {version}"
            );
        }
    }
    for version in range(ApiKey::OffsetForLeaderEpoch) {
        let partition = offset_for_leader_epoch_request::OffsetForLeaderPartition::default()
            .with_current_leader_epoch(-1)
            .with_leader_epoch(0);
        let topic = offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
            .with_topic(TopicName(s("orders")))
            .with_partitions(vec![partition]);
        let response = client
            .call(
                version,
                OffsetForLeaderEpochRequest::default().with_topics(vec![topic]),
            )
            .await;
        assert_eq!(response.topics[0].partitions[0].end_offset, produced);
    }
    let mut ids = Vec::new();
    for version in range(ApiKey::InitProducerId) {
        let response = client
            .call(
                version,
                InitProducerIdRequest::default().with_transactional_id(None),
            )
            .await;
        assert_eq!(response.error_code, 0);
        ids.push(response.producer_id.0);
    }
    ids.dedup();
    assert_eq!(ids.len(), range(ApiKey::InitProducerId).count());
    for version in range(ApiKey::FindCoordinator) {
        let request = FindCoordinatorRequest::default();
        let (request, expected) = if version >= 4 {
            (request.with_coordinator_keys(vec![s("group")]), 1)
        } else {
            (request.with_key(s("group")), 0)
        };
        let response = client.call(version, request).await;
        let code = response
            .coordinators
            .first()
            .map_or(response.error_code, |c| c.error_code);
        assert_eq!(code, ErrorCode::CoordinatorNotAvailable.code());
        assert_eq!(response.coordinators.len(), expected);
    }
    for version in range(ApiKey::DescribeCluster) {
        let response = client
            .call(version, DescribeClusterRequest::default())
            .await;
        assert_eq!((response.error_code, response.brokers.len()), (0, 1));
    }
    for version in range(ApiKey::DescribeConfigs) {
        for (resource_type, name, key) in [
            (2, "orders", "segment.bytes"),
            (4, "1", "node.id"),
            (4, "1", "log.segment.bytes"),
        ] {
            let resource = describe_configs_request::DescribeConfigsResource::default()
                .with_resource_type(resource_type)
                .with_resource_name(s(name))
                .with_configuration_keys(Some(vec![s(key)]));
            let request = DescribeConfigsRequest::default()
                .with_resources(vec![resource])
                .with_include_synonyms(true);
            let response = client.call(version, request).await;
            assert_eq!(response.results[0].configs.len(), 1, "{key}");
        }
    }
    for version in range(ApiKey::CreateTopics) {
        let topic = create_topics_request::CreatableTopic::default()
            .with_name(TopicName(StrBytes::from_string(format!("made-{version}"))))
            .with_num_partitions(1)
            .with_replication_factor(1);
        let response = client
            .call(
                version,
                CreateTopicsRequest::default().with_topics(vec![topic.clone()]),
            )
            .await;
        assert_eq!(response.topics[0].error_code, 0);
        let again = client
            .call(
                version,
                CreateTopicsRequest::default().with_topics(vec![topic]),
            )
            .await;
        assert_eq!(
            again.topics[0].error_code,
            ErrorCode::TopicAlreadyExists.code()
        );
    }
    for (version, count) in range(ApiKey::CreatePartitions).zip(3..) {
        let topic = create_partitions_request::CreatePartitionsTopic::default()
            .with_name(TopicName(s("orders")))
            .with_count(count)
            .with_assignments(None);
        let response = client
            .call(
                version,
                CreatePartitionsRequest::default().with_topics(vec![topic]),
            )
            .await;
        assert_eq!(
            response.results[0].error_code, 0,
            "{:?}",
            response.results[0].error_message
        );
    }
    for version in range(ApiKey::AlterConfigs) {
        let config = alter_configs_request::AlterableConfig::default()
            .with_name(s("retention.ms"))
            .with_value(Some(s("1000")));
        let resource = alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(s("orders"))
            .with_configs(vec![config]);
        let response = client
            .call(
                version,
                AlterConfigsRequest::default().with_resources(vec![resource]),
            )
            .await;
        assert_eq!(response.responses[0].error_code, 0);
    }
    for version in range(ApiKey::IncrementalAlterConfigs) {
        let config = incremental_alter_configs_request::AlterableConfig::default()
            .with_name(s("cleanup.policy"))
            .with_config_operation(2)
            .with_value(Some(s("compact")));
        let resource = incremental_alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(s("orders"))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        assert_eq!(
            client.call(version, request).await.responses[0].error_code,
            0
        );
    }
    for version in range(ApiKey::ElectLeaders) {
        let partitions = elect_leaders_request::TopicPartitions::default()
            .with_topic(TopicName(s("orders")))
            .with_partitions(vec![0]);
        let request = ElectLeadersRequest::default().with_topic_partitions(Some(vec![partitions]));
        let response = client.call(version, request).await;
        let code = response.replica_election_results[0].partition_result[0].error_code;
        assert_eq!(code, ErrorCode::ElectionNotNeeded.code());
    }
    for version in range(ApiKey::DeleteTopics) {
        let request = DeleteTopicsRequest::default();
        let name = |prefix: i16| TopicName(StrBytes::from_string(format!("made-{prefix}")));
        let request = if version >= 6 {
            let topic = delete_topics_request::DeleteTopicState::default()
                .with_topic_id(id)
                .with_name(None);
            request.with_topics(vec![topic])
        } else {
            request.with_topic_names(vec![name(version + 1)])
        };
        let response = client.call(version, request).await;
        assert_eq!(response.responses[0].error_code, 0, "version {version}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_waits_for_what_is_produced_meanwhile_and_no_longer() {
    let cluster = Cluster::start().await;
    let (mut consumer, mut producer) = (cluster.client().await, cluster.client().await);
    let id = consumer.create("orders", 1, &[]).await;
    let start = Instant::now();
    let empty = consumer.call(12, fetch(12, "orders", id, 0)).await;
    assert!(records(&empty).is_empty());
    assert!(start.elapsed() >= Duration::from_millis(100));
    // It is answered long before its time is up.
    let patient = fetch(12, "orders", id, 0).with_max_wait_ms(60_000);
    let (response, _) = tokio::join!(
        consumer.call(12, patient),
        producer.produce("orders", -1, batch(&["a", "b"]))
    );
    assert_eq!(response.responses[0].partitions[0].high_watermark, 2);
    // From the middle of a batch, the whole batch comes.
    let middle = consumer.call(12, fetch(12, "orders", id, 1)).await;
    assert_eq!(records(&middle), records(&response));
    // However small the limits, the first batch comes whole.
    let mut tiny = fetch(12, "orders", id, 0).with_max_bytes(1);
    tiny.topics[0].partitions[0].partition_max_bytes = 1;
    assert_eq!(records(&consumer.call(12, tiny).await), records(&response));
    // Out of range is said at once, whatever the wait.
    let beyond = consumer
        .call(12, fetch(12, "orders", id, 99).with_max_wait_ms(60_000))
        .await;
    assert_eq!(
        beyond.responses[0].partitions[0].error_code,
        ErrorCode::OffsetOutOfRange.code()
    );
    // A leader epoch from the future is not ours to answer (L-50).
    let mut request = fetch(12, "orders", id, 0);
    request.topics[0].partitions[0].current_leader_epoch = 77;
    let ahead = consumer.call(12, request).await;
    assert_eq!(
        ahead.responses[0].partitions[0].error_code,
        ErrorCode::UnknownLeaderEpoch.code()
    );
    // A consumer that read an epoch we never had is told where it parts from us (L-52).
    let mut request = fetch(12, "orders", id, 2);
    request.topics[0].partitions[0].last_fetched_epoch = 0;
    let agreed = consumer.call(12, request.clone()).await;
    assert_eq!(
        agreed.responses[0].partitions[0].diverging_epoch.end_offset,
        -1
    );
    request.topics[0].partitions[0].fetch_offset = 3;
    let diverging = consumer.call(12, request.with_max_wait_ms(60_000)).await;
    assert_eq!(
        diverging.responses[0].partitions[0]
            .diverging_epoch
            .end_offset,
        2
    );
    // Replicas, and sessions of somebody else, are turned away.
    let replica = consumer
        .call(12, fetch(12, "orders", id, 0).with_replica_id(2.into()))
        .await;
    assert_eq!(replica.error_code, ErrorCode::InvalidRequest.code());
    let session = fetch(12, "orders", id, 0)
        .with_session_id(5)
        .with_session_epoch(7);
    let session = consumer.call(12, session).await;
    assert_eq!(session.error_code, ErrorCode::FetchSessionIdNotFound.code());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_produce_is_refused_with_the_error_kafka_gives() {
    let cluster = Cluster::start().await;
    let mut client = cluster.client().await;
    client
        .create("orders", 1, &[("max.message.bytes", "200")])
        .await;
    client
        .create("keyed", 1, &[("cleanup.policy", "compact")])
        .await;
    client
        .create("stamped", 1, &[("message.timestamp.type", "LogAppendTime")])
        .await;
    let two = [batch(&["a"]), batch(&["b"])].concat();
    let mut flipped = batch(&["a"]).to_vec();
    *flipped.last_mut().expect("bytes") ^= 1;
    let large = "x".repeat(300);
    for (topic, acks, batch, error) in [
        ("orders", -1, Bytes::from(two), ErrorCode::InvalidRecord),
        ("orders", -1, Bytes::new(), ErrorCode::InvalidRecord),
        (
            "orders",
            -1,
            Bytes::from(flipped),
            ErrorCode::CorruptMessage,
        ),
        ("orders", -1, batch(&[&large]), ErrorCode::MessageTooLarge),
        ("orders", 2, batch(&["a"]), ErrorCode::InvalidRequiredAcks),
        ("keyed", 1, batch(&["a"]), ErrorCode::InvalidRecord),
        (
            "nothing",
            1,
            batch(&["a"]),
            ErrorCode::UnknownTopicOrPartition,
        ),
    ] {
        let response = client.produce(topic, acks, batch).await;
        assert_eq!(response.error_code, error.code(), "{topic} {error}");
    }
    assert_eq!(
        client.produce("stamped", 1, batch(&["a"])).await.error_code,
        0
    );
    let stamped = client.call(12, fetch(12, "stamped", Uuid::nil(), 0)).await;
    let (header, _) = batches(&records(&stamped))
        .next()
        .expect("one")
        .expect("valid");
    assert!(header.max_timestamp > 1000);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_retry_is_answered_with_its_first_offset() {
    let cluster = Cluster::start().await;
    let mut client = cluster.client().await;
    client.create("orders", 1, &[]).await;
    let sequenced = |sequence| {
        let mut builder = BatchBuilder::new(Compression::None).producer(
            ProducerId(7),
            ProducerEpoch(0),
            sequence,
        );
        builder.append(1000, None, Some(b"v"), &[]);
        builder.finish()
    };
    for (sequence, error, offset) in [
        (0, 0, 0),
        (1, 0, 1),
        (0, 0, 0),
        (1, 0, 1),
        (3, ErrorCode::OutOfOrderSequenceNumber.code(), -1),
        (2, 0, 2),
    ] {
        let response = client.produce("orders", -1, sequenced(sequence)).await;
        assert_eq!(
            (response.error_code, response.base_offset),
            (error, offset),
            "sequence {sequence}"
        );
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_acks_there_is_no_answer_and_a_failure_closes_the_connection() {
    let cluster = Cluster::start().await;
    let mut client = cluster.client().await;
    let id = client.create("orders", 1, &[]).await;
    client
        .send(9, &produce(9, "orders", id, 0, batch(&["a"])))
        .await;
    // The next answer is the next request's.
    let response = client.call(12, fetch(12, "orders", id, 0)).await;
    assert_eq!(response.responses[0].partitions[0].high_watermark, 1);
    client
        .send(9, &produce(9, "nothing", id, 0, batch(&["a"])))
        .await;
    assert!(client.is_closed().await);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let cluster = Cluster::start().await;
    let mut client = cluster.client().await;
    let id = client.create("orders", 1, &[]).await;
    let first = client.correlation_id + 1;
    for _ in 0..50 {
        client
            .send(9, &produce(9, "orders", id, -1, batch(&["a"])))
            .await;
        client.send(12, &fetch(12, "orders", id, 0)).await;
    }
    for number in 0..50 {
        let (correlation_id, produced): (i32, ProduceResponse) = client.receive(9).await;
        assert_eq!(correlation_id, first + 2 * number);
        assert_eq!(
            produced.responses[0].partition_responses[0].base_offset,
            i64::from(number)
        );
        let (correlation_id, _): (i32, FetchResponse) = client.receive(12).await;
        assert_eq!(correlation_id, first + 2 * number + 1);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_closes_its_connection_and_no_other() {
    let cluster = Cluster::start().await;
    let mut bystander = cluster.client().await;
    bystander.create("orders", 1, &[]).await;
    let frame = |body: &[u8]| [&(body.len() as u32).to_be_bytes()[..], body].concat();
    let garbage: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![
            0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03,
        ],
        vec![0xff; 64],
        vec![0x7f, 0xff, 0xff, 0xff, 0, 0],
        vec![0, 0, 0, 0],
        frame(&[0x42; 300]),
        frame(&[0, 11, 0, 0, 0, 0, 0, 1, 0xff, 0xff]), // JoinGroup
        frame(&[0, 0, 0, 2, 0, 0, 0, 1, 0xff, 0xff]),  // Produce before version 3
        frame(&[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]), // two thousand million topics
        frame(&[0, 1, 0, 12, 0, 0, 0, 1, 0xff, 0xff, 0, 0xff]),
    ];
    for bytes in garbage {
        let mut stranger = cluster.client().await;
        stranger.stream.write_all(&bytes).await.expect("sent");
        assert!(stranger.is_closed().await, "{bytes:?}");
    }
    // A client newer than this broker is told in words it understands.
    let mut newer = cluster.client().await;
    let too_new = frame(&[0, 18, 0, 99, 0, 0, 0, 5, 0xff, 0xff, 0, 1, 2]);
    newer.stream.write_all(&too_new).await.expect("sent");
    let (correlation_id, versions): (i32, ApiVersionsResponse) = newer.receive(0).await;
    assert_eq!(
        (correlation_id, versions.error_code),
        (5, ErrorCode::UnsupportedVersion.code())
    );
    // One that looks for another broker at this address is told so (KIP-1242), and may go on.
    let described: DescribeClusterResponse = newer.call(0, DescribeClusterRequest::default()).await;
    let id = described.cluster_id.as_bytes();
    for (node, expected) in [(1, 0), (7, ErrorCode::RebootstrapRequired.code())] {
        let mut whom = b"\0\x12\0\x05\0\0\0\x06\xff\xff\0\x02j\x021".to_vec();
        whom.push(id.len() as u8 + 1);
        whom.extend_from_slice(id);
        whom.extend_from_slice(&[0, 0, 0, node, 0]);
        newer.stream.write_all(&frame(&whom)).await.expect("sent");
        let (_, versions): (i32, ApiVersionsResponse) = newer.receive(4).await;
        assert_eq!(versions.error_code, expected);
        assert_eq!(versions.api_keys.is_empty(), expected != 0);
    }
    assert_eq!(
        bystander
            .produce("orders", -1, batch(&["a"]))
            .await
            .error_code,
        0
    );
    cluster.stop().await;
}
