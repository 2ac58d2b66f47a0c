//! Means over traces, with confidence intervals; medians and other quantiles of samples.

/// A mean over traces, and the 95% confidence interval of the true mean (Student's t). With a single trace, the
/// interval is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) mean: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// The estimate from samples; NaN if there are none, or if one is NaN.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        let half = students(samples.len().saturating_sub(1)) * error;
        Self {
            mean,
            low: mean - half,
            high: mean + half,
        }
    }

    /// Half of the interval's length.
    pub(crate) fn half(self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Whether it differs significantly from zero.
    pub(crate) fn is_significant(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// The median of samples, of an even number the mean of the two in the middle; `None` without samples.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        0 => Some((sorted.get(sorted.len() / 2 - 1)? + upper) / 2.0),
        _ => Some(upper),
    }
}

/// The smallest sample that at least this share of all are not above; NaN without samples.
pub(crate) fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let found = sorted.get(rank.saturating_sub(1));
    found.copied().unwrap_or(f64::NAN)
}

/// The 97.5% quantile of a t distribution with this number of degrees of freedom.
fn students(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    match degrees {
        0 => f64::NAN,
        _ => TABLE.get(degrees - 1).copied().unwrap_or(1.96),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[3.0, 1.0, 2.0, 9.0]), Some(2.5));
    }

    #[test]
    fn quantiles_are_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let found = [0.0, 0.5, 0.9, 0.99, 1.0].map(|share| quantile(&samples, share));
        assert_eq!(found, [1.0, 50.0, 90.0, 99.0, 100.0]);
        assert_eq!(quantile(&[3.0, 1.0], 0.9), 3.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_interval_is_students() {
        let found = Estimate::of(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(found.mean, 2.5);
        // A deviation of 1.291, divided by 2, times 3.182.
        assert!((found.half() - 2.054).abs() < 0.001, "{found:?}");
        assert!(found.is_significant());
        assert!(!Estimate::of(&[-1.0, 1.0]).is_significant());
        assert!(Estimate::of(&[1.0]).half().is_nan() && Estimate::of(&[]).mean.is_nan());
    }
}
