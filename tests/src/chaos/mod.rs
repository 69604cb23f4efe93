//! Chaos with real processes: a plan drawn from a seed breaks a cluster in one way after another while audited writers and
//! readers are at work; then everything is mended, and what was acknowledged and read is compared with what is there. The
//! seed gives the plan again, not the run: processes and networks keep their own time.

mod act;
mod plan;
mod repeats;
mod run;

pub use plan::{Broker, Fault, Lasting, Plan, Settle, Step, Ways};
pub use run::{Report, Settings, run};
