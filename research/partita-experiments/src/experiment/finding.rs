//! The findings of an experiment, beside the paper's.

use serde::Serialize;

/// One claim and its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The quantity.
    pub what: String,
    /// The paper's result.
    pub paper: String,
    /// The result here.
    pub here: String,
    /// Whether the two agree.
    pub holds: bool,
    /// The reason if not, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

/// All findings of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// In the order of the table.
    pub findings: Vec<Finding>,
}

/// The findings' overall verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every claim holds.
    Reproduced,
    /// Some do not.
    Differs(String),
}

impl Judgement {
    /// Adds a claim.
    pub fn claim(
        &mut self,
        what: impl Into<String>,
        paper: impl Into<String>,
        here: impl Into<String>,
        holds: bool,
    ) -> &mut Self {
        let (what, paper, here) = (what.into(), paper.into(), here.into());
        self.findings.push(Finding { what, paper, here, holds, because: None });
        self
    }

    /// Records why the last claim does not hold, if it does not.
    pub fn because(&mut self, reason: impl Into<String>) -> &mut Self {
        if let Some(last) = self.findings.last_mut().filter(|last| !last.holds) {
            last.because = Some(reason.into());
        }
        self
    }

    /// The findings together.
    pub fn verdict(&self) -> Verdict {
        let failed = self.findings.iter().filter(|finding| !finding.holds);
        let reasons: Vec<String> = failed
            .map(|finding| {
                let because =
                    finding.because.as_ref().map_or(String::new(), |why| format!(", because {why}"));
                format!("«{}» is {}, in the paper {}{because}", finding.what, finding.here, finding.paper)
            })
            .collect();
        if reasons.is_empty() { Verdict::Reproduced } else { Verdict::Differs(reasons.join("; ")) }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reproduced => f.write_str("reproduced"),
            Self::Differs(reasons) => write!(f, "differs: {reasons}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_says_what_differs_and_why() {
        let mut judgement = Judgement::default();
        judgement.claim("a", "1", "1", true).because("never said");
        assert_eq!(judgement.verdict().to_string(), "reproduced");
        judgement.claim("b", "2 ms", "3 ms", false).because("it is slower");
        judgement.claim("c", "4", "5", false);
        assert_eq!(
            judgement.verdict().to_string(),
            "differs: «b» is 3 ms, in the paper 2 ms, because it is slower; «c» is 5, in the paper 4"
        );
    }
}
