package batch

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vkmla/vkmla/server/model"
)

// Metrics counts what a scheduler does.
type Metrics struct {
	requests         *prometheus.CounterVec // outcome
	prompts, answers prometheus.Counter     // tokens
	drafts, refused  prometheus.Counter     // tokens
	preemptions      prometheus.Counter
	nonfinite        prometheus.Counter
	steps            prometheus.Histogram // seconds
	sizes            prometheus.Histogram // tokens of a step
	first, between   prometheus.Histogram // seconds, of answers
	queued           prometheus.Histogram // seconds
	running, waiting prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	histogram := func(name, help string, first, factor float64, n int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, factor, n)})
	}
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vkmla_requests_total",
			Help: "Requests that have ended, by outcome."}, []string{"outcome"}),
		prompts:     counter("vkmla_prompt_tokens_total", "Tokens of prompts computed."),
		answers:     counter("vkmla_generated_tokens_total", "Tokens of answers given."),
		drafts:      counter("vkmla_drafted_tokens_total", "Drafted tokens computed."),
		refused:     counter("vkmla_refused_drafts_total", "Drafted tokens computed and taken back."),
		preemptions: counter("vkmla_preemptions_total", "Requests that went back into the queue for want of memory."),
		nonfinite:   counter("vkmla_nonfinite_total", "Requests that ended because the model gave numbers that are not finite."),
		steps:       histogram("vkmla_step_seconds", "Time of a step.", 0.001, 2, 16),
		sizes:       histogram("vkmla_step_tokens", "Tokens of a step.", 1, 2, 14),
		first:       histogram("vkmla_time_to_first_token_seconds", "Time from a request to the first token of its answer.", 0.01, 2, 16),
		between:     histogram("vkmla_time_between_tokens_seconds", "Time between tokens of an answer.", 0.001, 2, 16),
		queued:      histogram("vkmla_queue_seconds", "Time that requests wait before they are computed.", 0.001, 4, 12),
		running:     gauge("vkmla_requests_running", "Requests being computed."),
		waiting:     gauge("vkmla_requests_waiting", "Requests that wait."),
	}
	r.MustRegister(m.requests, m.prompts, m.answers, m.drafts, m.refused, m.preemptions, m.nonfinite, m.steps, m.sizes,
		m.first, m.between, m.queued, m.running, m.waiting)
	return m
}

func (m *Metrics) queues(running, waiting int) {
	m.running.Set(float64(running))
	m.waiting.Set(float64(waiting))
}

// begun notes how long a request waited, the first time.
func (m *Metrics) begun(a *Answer) {
	if !a.begun {
		m.queued.Observe(time.Since(a.came).Seconds())
	}
	a.begun = true
}

func (m *Metrics) ended(reason Reason, err error) {
	outcome := string(reason)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		outcome = "cancelled"
	case err != nil:
		outcome = "error"
	}
	m.requests.WithLabelValues(outcome).Inc()
}

// step notes a step, whose answers have not taken it yet.
func (m *Metrics) step(took time.Duration, of []*Answer, chunks []model.Chunk) {
	n := 0
	for i, c := range chunks {
		n += len(c.Tokens)
		if of[i].left() > 1 {
			m.prompts.Add(float64(len(c.Tokens)))
		} else {
			m.drafts.Add(float64(len(c.Tokens) - 1))
		}
	}
	m.steps.Observe(took.Seconds())
	m.sizes.Observe(float64(n))
}

// tokens counts what an answer got.
func (m *Metrics) tokens(a *Answer, tokens []Token) {
	for _, t := range tokens {
		if t.Prompt {
			continue
		}
		m.answers.Inc()
		now := time.Now()
		if a.last.IsZero() {
			m.first.Observe(now.Sub(a.came).Seconds())
		} else {
			m.between.Observe(now.Sub(a.last).Seconds())
		}
		a.last = now
	}
}

func (m *Metrics) preempted() { m.preemptions.Inc() }
