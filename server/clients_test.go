package main

import (
	"context"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOpenAIClient takes a session with the usual Go client: models, completions whole and in
// pieces, several answers, a client that leaves, and errors as the client's own.
func TestOpenAIClient(t *testing.T) {
	dir, _ := whole(t)
	n := start(t, "--model", dir, "--served-model-name", "tiny", "--api-key", "secret", "--api-key", "other",
		"--prefix", t.TempDir())
	ctx := t.Context()
	c := openai.NewClient(option.WithBaseURL(n.url+"/v1/"), option.WithAPIKey("secret"), option.WithMaxRetries(0))

	models, err := c.Models.List(ctx)
	require.NoError(t, err)
	require.Len(t, models.Data, 1)
	assert.Equal(t, "tiny", models.Data[0].ID)
	one, err := c.Models.Get(ctx, "tiny")
	require.NoError(t, err)
	assert.Equal(t, "vkmla", one.OwnedBy)

	ids := openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{1, 2, 3}}
	ask := openai.CompletionNewParams{Model: "tiny", Prompt: ids, MaxTokens: openai.Int(4), Seed: openai.Int(7),
		Logprobs: openai.Int(2), TopP: openai.Float(0.9)}
	first, err := c.Completions.New(ctx, ask)
	require.NoError(t, err)
	require.Len(t, first.Choices, 1)
	tokens := first.Choices[0].Logprobs.Tokens
	assert.Len(t, tokens, 4)
	assert.Equal(t, int64(4), first.Usage.CompletionTokens)
	again, err := c.Completions.New(ctx, ask)
	require.NoError(t, err)
	assert.Equal(t, tokens, again.Choices[0].Logprobs.Tokens, "by the same seed")

	var pieces []string
	stream := c.Completions.NewStreaming(ctx, ask)
	for stream.Next() {
		for _, x := range stream.Current().Choices {
			pieces = append(pieces, x.Logprobs.Tokens...)
		}
	}
	require.NoError(t, stream.Err())
	assert.Equal(t, tokens, pieces, "in pieces")

	several := ask
	several.N, several.Prompt = openai.Int(2), openai.CompletionNewParamsPromptUnion{OfArrayOfTokenArrays: [][]int64{{1, 2, 3}, {4}}}
	all, err := c.Completions.New(ctx, several)
	require.NoError(t, err)
	require.Len(t, all.Choices, 4)
	assert.Equal(t, tokens, all.Choices[0].Logprobs.Tokens, "beside others")

	leaving, leave := context.WithCancel(ctx)
	long := ask
	long.MaxTokens = openai.Int(900)
	stream = c.Completions.NewStreaming(leaving, long)
	require.True(t, stream.Next())
	leave()
	for stream.Next() {
	}
	assert.ErrorIs(t, stream.Err(), context.Canceled)

	refused := func(status int, code, param string, err error) {
		t.Helper()
		var e *openai.Error
		if assert.True(t, errors.As(err, &e), "%v", err) {
			assert.Equal(t, status, e.StatusCode)
			assert.Equal(t, code, e.Code)
			assert.Equal(t, param, e.Param)
		}
	}
	other := ask
	other.Model = "gpt-4"
	_, err = c.Completions.New(ctx, other)
	refused(404, "model_not_found", "", err)
	_, err = c.Models.Get(ctx, "gpt-4")
	refused(404, "model_not_found", "", err)
	other = ask
	other.PresencePenalty = openai.Float(3)
	_, err = c.Completions.New(ctx, other)
	refused(400, "invalid_value", "presence_penalty", err)
	other = ask
	other.Prompt = openai.CompletionNewParamsPromptUnion{OfString: openai.String("")}
	_, err = c.Completions.New(ctx, other)
	refused(400, "invalid_value", "prompt", err)
	conversation(t, c)
	_, err = c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{
		openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.ImageContentPart(
			openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64,AA"})})}})
	refused(400, "invalid_value", "messages[0].content[0].type", err)
	others := openai.NewClient(option.WithBaseURL(n.url+"/v1/"), option.WithAPIKey("other"), option.WithMaxRetries(0))
	again = nil
	for again == nil || again.Usage.PromptTokensDetails.CachedTokens == 0 { // it is kept beside the answer
		again, err = c.Completions.New(ctx, ask)
		require.NoError(t, err)
	}
	assert.Equal(t, tokens, again.Choices[0].Logprobs.Tokens, "from the store")
	theirs, err := others.Completions.New(ctx, ask)
	require.NoError(t, err)
	assert.Zero(t, theirs.Usage.PromptTokensDetails.CachedTokens, "who asked the same by another key is not told")
	assert.Equal(t, tokens, theirs.Choices[0].Logprobs.Tokens)
	stranger := openai.NewClient(option.WithBaseURL(n.url+"/v1/"), option.WithAPIKey("guess"), option.WithMaxRetries(0))
	_, err = stranger.Models.List(ctx)
	refused(401, "invalid_api_key", "", err)
}

// conversation asks for answers in conversations, whole and in pieces, with a tool that the model
// is told of. What a model with random weights says is only the same each time.
func conversation(t *testing.T, c openai.Client) {
	ctx := t.Context()
	ask := openai.ChatCompletionNewParams{Model: "tiny", MaxCompletionTokens: openai.Int(12), Seed: openai.Int(3),
		Messages:        []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("hello")},
		ReasoningEffort: "none", Logprobs: openai.Bool(true),
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "f"})}}
	first, err := c.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)
	require.Len(t, first.Choices, 1)
	said := first.Choices[0].Message.Content
	assert.Equal(t, int64(12), first.Usage.CompletionTokens)
	assert.Len(t, first.Choices[0].Logprobs.Content, 12)
	stream := c.Chat.Completions.NewStreaming(ctx, ask)
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		require.True(t, all.AddChunk(stream.Current()))
	}
	require.NoError(t, stream.Err())
	assert.Equal(t, said, all.Choices[0].Message.Content, "in pieces")
	assert.Equal(t, "length", all.Choices[0].FinishReason)

	thinking := ask
	thinking.ReasoningEffort = "high"
	other, err := c.Chat.Completions.New(ctx, thinking)
	require.NoError(t, err)
	assert.Empty(t, other.Choices[0].Message.Content, "it has not come to an end of its thoughts")
	assert.Contains(t, other.Choices[0].Message.RawJSON(), "reasoning_content")
}
