package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/vkmla/vkmla/server/batch"
)

func bad(param string, got any, want string, a ...any) error {
	return &batch.ParamError{Param: param, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
}

// statusError is an error that has a status and a code of its own.
type statusError struct {
	status  int
	code    string
	message string
}

func (e *statusError) Error() string { return e.message }

// errLeft ends the request of a client that has ended its side of the connection. No read tells one
// that has gone from one that still waits, and answers that no client takes would keep the device
// from others: both are given up. The status is nginx's and not registered.
var errLeft = &statusError{499, "client_closed_request",
	"the client ended its side of the connection, want it open until the answer is there"}

// left returns errLeft for the error of a request that its client has ended, and other errors as
// they are.
func left(r *http.Request, err error) error {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return errLeft
	}
	return err
}

// problem is an error as clients get it.
type problem struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// describe returns the status and the description of an error.
func describe(err error) (status int, p problem) {
	var param *batch.ParamError
	var own *statusError
	code := ""
	switch status = http.StatusInternalServerError; {
	case errors.As(err, &own):
		status, code = own.status, own.code
	case errors.Is(err, batch.ErrRequest):
		status, code = http.StatusBadRequest, "invalid_value"
	case errors.Is(err, batch.ErrBusy):
		status, code = http.StatusTooManyRequests, "too_many_requests"
	case errors.Is(err, batch.ErrClosing):
		status, code = http.StatusServiceUnavailable, "draining"
	case errors.Is(err, batch.ErrMemory):
		status, code = http.StatusServiceUnavailable, "not_enough_memory"
	case errors.Is(err, batch.ErrNumbers):
		code = "not_finite"
	}
	p = problem{Message: err.Error(), Type: "server_error"}
	switch {
	case status == http.StatusUnauthorized:
		p.Type = "authentication_error"
	case status == http.StatusTooManyRequests:
		p.Type = "rate_limit_error"
	case status < 500:
		p.Type = "invalid_request_error"
	}
	if errors.As(err, &param) {
		p.Param = &param.Param
	}
	if code != "" {
		p.Code = &code
	}
	return status, p
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	status, p := describe(err)
	w.Header().Set("Content-Type", "application/json")
	switch status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "5")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": p})
}
