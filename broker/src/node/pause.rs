//! Pauses between attempts: short at first, then longer.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::sleep;

/// Doubles from the first pause to the longest.
pub struct Pause {
    bounds: RangeInclusive<Duration>,
    next: Duration,
}

impl Pause {
    /// Begins with the lower bound.
    pub fn new(bounds: RangeInclusive<Duration>) -> Self {
        let next = *bounds.start();
        Self { bounds, next }
    }

    /// Lets a pause go by.
    pub async fn wait(&mut self) {
        sleep(self.next()).await;
    }

    /// An attempt succeeded: the next pause is short again.
    pub fn reset(&mut self) {
        self.next = *self.bounds.start();
    }

    fn next(&mut self) -> Duration {
        let longer = (self.next * 2).min(*self.bounds.end());
        std::mem::replace(&mut self.next, longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_a_success() {
        let ms = Duration::from_millis;
        let mut pause = Pause::new(ms(10)..=ms(35));
        let waited: Vec<_> = (0..4).map(|_| pause.next()).collect();
        assert_eq!(waited, [ms(10), ms(20), ms(35), ms(35)]);
        pause.reset();
        assert_eq!(pause.next(), ms(10));
    }
}
