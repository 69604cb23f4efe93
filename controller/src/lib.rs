//! The controller: registers brokers, fences the dead, elects leaders, keeps topics and configurations, and ships all of it
//! to the brokers as one ordered metadata log. `cluster` decides and knows nothing of replication, clocks or sockets;
//! what surrounds it replicates its commands and feeds it. No record data ever passes through here.

pub mod cluster;
